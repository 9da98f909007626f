#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::inline internal {

/// Header of a trace of LibTorch's profiler.
struct TraceHead {
  /// From the process name of lockstep::Trace, "rank 1", or PyTorch's distributedInfo.
  std::optional<int> rank = std::nullopt;
  std::string host = {};
  /// Start of all times in the trace, in ns since 1970.
  std::int64_t base_ns = 0;
};

/// Reads a trace event by event, of any size, and passes each to `on_event`.
/// Errors: SystemError; CorruptFile for a file that is no such trace.
TraceHead read_trace(const std::filesystem::path& path,
                     const std::function<void(nlohmann::json&)>& on_event);

}  // namespace lockstep::inline internal
