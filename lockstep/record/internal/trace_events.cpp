#include "lockstep/record/internal/trace_events.h"

#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

// Of {"name": "process_name", "args": {"name": "rank 1"}}.
std::optional<int> rank_of_process(const json& event) {
  constexpr std::string_view kPrefix = "rank ";
  if (event.value("name", "") != "process_name") return std::nullopt;
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return std::nullopt;
  const std::string name = args->value("name", "");
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return parse_number<int>(std::string_view(name).substr(kPrefix.size()));
}

}  // namespace

TraceHead read_trace(const std::filesystem::path& path,
                     const std::function<void(nlohmann::json&)>& on_event) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path, error)) {
    throw SystemError(concat("read the trace ", path), file ? EISDIR : errno);
  }
  TraceHead head;
  bool is_in_events = false;
  const auto take = [&](int depth, json::parse_event_t what, json& parsed) {
    if (depth == 1 && what == json::parse_event_t::key) is_in_events = parsed == "traceEvents";
    if (!is_in_events || depth != 2 || what != json::parse_event_t::object_end) return true;
    if (!head.rank) head.rank = rank_of_process(parsed);
    on_event(parsed);
    return false;
  };
  try {
    const json trace = json::parse(file, take);
    if (!trace.is_object() || !trace.contains("traceEvents")) {
      throw CorruptFile(concat("trace ", path, ": the JSON has no traceEvents"));
    }
    head.host = trace.value("host_name", "");
    head.base_ns = trace.value("baseTimeNanoseconds", std::int64_t{0});
    if (const auto info = trace.find("distributedInfo"); info != trace.end() && !head.rank) {
      if (info->contains("rank")) head.rank = info->value("rank", 0);
    }
  } catch (const json::exception& cause) {
    throw CorruptFile(concat("trace ", path, ": not a profiler trace, or truncated: ",
                             std::string_view(cause.what()).substr(0, 120)));
  }
  return head;
}

}  // namespace lockstep::inline internal
