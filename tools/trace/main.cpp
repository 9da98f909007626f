// The program `lockstep-trace`, which `lockstep trace` becomes.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/command_line/run_tool.h"
#include "lockstep/base/internal/count_text.h"
#include "lockstep/record/internal/trace_merge.h"
#include "tools/trace/trace_options.h"

namespace lockstep::inline internal {
namespace {

int trace_command(const std::vector<std::string>& arguments) {
  const TraceCommandOptions options = parse_trace_options(arguments);
  if (options.help) {
    std::fputs(trace_help(), stdout);
    return 0;
  }
  std::vector<std::filesystem::path> traces(options.sources.begin(), options.sources.end());
  if (traces.size() == 1 && std::filesystem::is_directory(traces.front())) {
    traces = rank_traces_in(traces.front());
  }
  const MergedTrace merged = merge_traces(options.target, traces);
  constexpr double kNotable = 0.5;  // µs
  std::string clocks;
  if (merged.largest_shift_us > kNotable) {
    char text[64];
    std::snprintf(text, sizeof text, "; clocks were put right by up to %.0f us",
                  merged.largest_shift_us);
    clocks = text;
  }
  std::printf("%s: %s of %s%s; open it in ui.perfetto.dev\n", options.target.c_str(),
              count_text(merged.events, "event").c_str(),
              count_text(merged.ranks.size(), "rank").c_str(), clocks.c_str());
  return 0;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::trace_command);
}
