#include "lockstep/record/internal/trace_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/record/internal/trace_events.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

// What is read of a rank's trace before anything is written.
struct RankTrace {
  std::filesystem::path path;
  int rank = 0;
  std::string host;
  std::int64_t base_ns = 0;
  double earliest_us = std::numeric_limits<double>::max();
  std::vector<MeetingSpan> meetings;
  /// By the process's number in the trace, those that do something, in the order of their first
  /// event: the rank itself, then its devices.
  std::vector<std::int64_t> processes;
  std::map<std::int64_t, std::string> names;
  double shift_us = 0;
};

bool is_metadata(const json& event) {
  return event.value("ph", "") == "M";
}

// Nothing of what describes the profiler itself.
std::optional<std::int64_t> process_of(const json& event) {
  const auto pid = event.find("pid");
  if (pid == event.end() || !pid->is_number_integer()) return std::nullopt;
  return pid->get<std::int64_t>();
}

void note(RankTrace& trace, const json& event) {
  const auto process = process_of(event);
  if (!process) return;
  if (is_metadata(event)) {
    if (event.value("name", "") == "process_labels" && event.contains("args")) {
      trace.names[*process] = event["args"].value("labels", "");
    }
    return;
  }
  if (std::ranges::find(trace.processes, *process) == trace.processes.end()) {
    trace.processes.push_back(*process);
  }
  const double begin = event.value("ts", 0.0);
  trace.earliest_us = std::min(trace.earliest_us, begin);
  if (event.value("name", "") == kClockSpan) {
    trace.meetings.push_back({.begin_us = begin, .end_us = begin + event.value("dur", 0.0)});
  }
}

RankTrace examine(const std::filesystem::path& path) {
  RankTrace trace{.path = path, .host = {}, .meetings = {}, .processes = {}, .names = {}};
  const TraceHead head = read_trace(path, [&](const json& event) { note(trace, event); });
  if (!head.rank) {
    throw UsageError(concat("trace ", path,
                            ": it names no rank; give traces that lockstep::Trace or "
                            "TraceCallback wrote"));
  }
  trace.rank = *head.rank;
  trace.host = head.host;
  trace.base_ns = head.base_ns;
  std::ranges::sort(trace.meetings, {}, &MeetingSpan::begin_us);
  // The rank itself has no device's label.
  std::stable_partition(trace.processes.begin(), trace.processes.end(), [&](std::int64_t process) {
    return !trace.names[process].starts_with("GPU");
  });
  return trace;
}

// What is added to the trace's times so that they are by the first one's base and clock.
double offset_us(const RankTrace& trace, const RankTrace& first) {
  constexpr double kNanosecondsPerMicrosecond = 1000;
  return static_cast<double>(trace.base_ns - first.base_ns) / kNanosecondsPerMicrosecond +
         trace.shift_us;
}

class Timeline {
 public:
  explicit Timeline(const std::filesystem::path& path) : file_(path) {
    text_ = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  }
  void add(const json& event) {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
    text_ += concat(events_++ == 0 ? "" : ",\n",
                    event.dump(-1, ' ', false, json::error_handler_t::replace));
    if (text_.size() >= kPieceBytes) write();
  }
  std::int64_t finish() {
    text_ += "\n]}\n";
    write();
    file_.commit();
    return events_;
  }

 private:
  void write() {
    file_.write(text_.data(), text_.size());
    text_.clear();
  }

  AtomicFile file_;
  std::string text_;
  std::int64_t events_ = 0;
};

std::int64_t process_in_timeline(const RankTrace& trace, std::size_t process) {
  constexpr std::int64_t kDevicesFrom = 1'000'000;  // More ranks there are not.
  return trace.rank + static_cast<std::int64_t>(process) * kDevicesFrom;
}

void describe_processes(Timeline& timeline, const RankTrace& trace) {
  constexpr std::int64_t kMostDevices = 100;
  for (std::size_t i = 0; i < trace.processes.size(); ++i) {
    const auto label = trace.names.find(trace.processes[i]);
    std::string name = concat("rank ", trace.rank);
    if (i > 0) name += concat(": ", label == trace.names.end() ? "other" : label->second);
    const auto say = [&](const char* what, const json& args) {
      timeline.add({{"ph", "M"},
                    {"name", what},
                    {"pid", process_in_timeline(trace, i)},
                    {"tid", 0},
                    {"args", args}});
    };
    say("process_name", {{"name", name}});
    say("process_labels", {{"labels", trace.host}});
    say("process_sort_index",
        {{"sort_index", trace.rank * kMostDevices + static_cast<std::int64_t>(i)}});
  }
}

void copy_events(Timeline& timeline, const RankTrace& trace, double shift_us) {
  constexpr std::int64_t kFlowsPerRank = std::int64_t{1} << 32;
  read_trace(trace.path, [&](json& event) {
    const auto process = process_of(event);
    if (!process) return;
    const auto found = std::ranges::find(trace.processes, *process);
    if (found == trace.processes.end()) return;
    const std::string name = event.value("name", "");
    const bool is_told = is_metadata(event) && name.starts_with("process_");
    if (is_told) return;
    event["pid"] =
        process_in_timeline(trace, static_cast<std::size_t>(found - trace.processes.begin()));
    if (is_metadata(event)) {
      event.erase("ts");
    } else {
      event["ts"] = event.value("ts", 0.0) + shift_us;
    }
    if (const auto id = event.find("id"); id != event.end() && id->is_number_integer()) {
      *id = id->get<std::int64_t>() + trace.rank * kFlowsPerRank;
    }
    timeline.add(event);
  });
}

}  // namespace

MergedTrace merge_traces(const std::filesystem::path& path,
                         const std::vector<std::filesystem::path>& traces) {
  if (traces.empty()) throw UsageError("merge traces: there are none");
  std::vector<RankTrace> ranks;
  for (const auto& trace : traces) ranks.push_back(examine(trace));
  std::ranges::stable_sort(ranks, {}, &RankTrace::rank);
  MergedTrace merged;
  double origin_us = std::numeric_limits<double>::max();
  for (RankTrace& trace : ranks) {
    if (!merged.ranks.empty() && merged.ranks.back() == trace.rank) {
      throw UsageError(concat("merge traces: ", trace.path, " and another are both of rank ",
                              trace.rank, "; give those of one run"));
    }
    merged.ranks.push_back(trace.rank);
    const RankTrace& first = ranks.front();
    std::vector<MeetingSpan> meetings = trace.meetings;
    for (MeetingSpan& meeting : meetings) {
      meeting.begin_us += offset_us(trace, first);
      meeting.end_us += offset_us(trace, first);
    }
    trace.shift_us = clock_shift_us(first.meetings, meetings);
    merged.largest_shift_us = std::max(merged.largest_shift_us, std::abs(trace.shift_us));
    if (trace.processes.empty()) continue;
    origin_us = std::min(origin_us, trace.earliest_us + offset_us(trace, first));
  }
  Timeline timeline(path);
  for (const RankTrace& trace : ranks) describe_processes(timeline, trace);
  for (const RankTrace& trace : ranks) {
    copy_events(timeline, trace, offset_us(trace, ranks.front()) - origin_us);
  }
  merged.events = timeline.finish();
  return merged;
}

std::vector<std::filesystem::path> rank_traces_in(const std::filesystem::path& folder) {
  constexpr std::string_view kMark = ".rank";
  std::error_code error;
  std::map<int, std::filesystem::path> traces;
  std::set<std::string> timelines;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().stem().string();
    const std::size_t mark = name.rfind(kMark);
    if (entry.path().extension() != ".json" || mark == std::string::npos) continue;
    const auto rank = parse_number<int>(std::string_view(name).substr(mark + kMark.size()));
    if (!rank) continue;
    traces[*rank] = entry.path();
    timelines.insert(name.substr(0, mark));
  }
  if (error) {
    throw SystemError(concat("find traces in ", folder), error.value(),
                      "give a folder with the traces of all ranks");
  }
  if (traces.empty()) {
    throw UsageError(concat("find traces in ", folder,
                            ": none found; their names are <name>.rank<number>.json"));
  }
  if (timelines.size() > 1) {
    throw UsageError(concat("find traces in ", folder, ": there are traces of several timelines, ",
                            *timelines.begin(), " and ", *timelines.rbegin(),
                            "; name the files of one, as in ", *timelines.begin(), ".rank*.json"));
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& [rank, path] : traces) paths.push_back(path);
  return paths;
}

double clock_shift_us(const std::vector<MeetingSpan>& of_rank_0,
                      const std::vector<MeetingSpan>& of_rank) {
  const std::size_t count = std::min(of_rank_0.size(), of_rank.size());
  if (count == 0) return 0;
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < count; ++i) {
    least = std::max(least, of_rank_0[i].begin_us - of_rank[i].end_us);
    most = std::min(most, of_rank_0[i].end_us - of_rank[i].begin_us);
  }
  return least <= 0 && 0 <= most ? 0 : least + (most - least) / 2;
}

}  // namespace lockstep::inline internal
