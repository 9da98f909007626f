#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline internal {

/// "dir/trace.json" → "dir/trace.rank3.json".
std::filesystem::path trace_path(const std::filesystem::path& path, int rank);

/// The trace with the process under another name; as it is where it names none.
std::string with_process_name(std::string trace, const std::string& name);

}  // namespace lockstep::inline internal
