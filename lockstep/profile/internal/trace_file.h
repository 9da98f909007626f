#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline internal {

/// A rank's path: "dir/trace.json" → "dir/trace.rank3.json".
std::filesystem::path trace_path(const std::filesystem::path& path, int rank);

/// Renames the process in a trace; unchanged if the trace names no process.
std::string with_process_name(std::string trace, const std::string& name);

}  // namespace lockstep::inline internal
