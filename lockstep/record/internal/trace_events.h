#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::inline internal {

/// What a trace of LibTorch's profiler says of itself.
struct TraceHead {
  /// As lockstep::Trace names the process, "rank 1", or PyTorch's own distributedInfo.
  std::optional<int> rank = std::nullopt;
  std::string host = {};
  /// What all times of the trace are counted from, since 1970.
  std::int64_t base_ns = 0;
};

/// Reads a trace event by event, however large it is: each is given away as it comes. Errors:
/// SystemError; CorruptFile for what is no such trace.
TraceHead read_trace(const std::filesystem::path& path,
                     const std::function<void(nlohmann::json&)>& on_event);

}  // namespace lockstep::inline internal
