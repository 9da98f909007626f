#include "lockstep/profile/internal/trace_file.h"

#include <string_view>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

std::filesystem::path trace_path(const std::filesystem::path& path, int rank) {
  std::filesystem::path own = path;
  return own.replace_filename(
      concat(path.stem().string(), ".rank", rank, path.extension().string()));
}

// Kineto writes {"ph": "M", "name": "process_name", …, "args": {"name": "program"}} ahead of all
// that happened. Edited as text: a trace may be larger than a parser can hold.
std::string with_process_name(std::string trace, const std::string& name) {
  constexpr std::string_view kEvent = "\"process_name\"";
  constexpr std::string_view kArguments = "\"args\"";
  constexpr std::string_view kName = "\"name\": \"";
  const std::size_t event = trace.find(kEvent);
  const std::size_t arguments = trace.find(kArguments, event);
  const std::size_t key = trace.find(kName, arguments);
  if (event == std::string::npos || arguments == std::string::npos || key == std::string::npos) {
    return trace;
  }
  const std::size_t begin = key + kName.size();
  const std::size_t end = trace.find('"', begin);
  if (end == std::string::npos) return trace;
  return trace.replace(begin, end - begin, name);
}

}  // namespace lockstep::inline internal
