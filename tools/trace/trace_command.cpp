#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/internal/text.h"
#include "lockstep/record/internal/trace_merge.h"
#include "tools/commands.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {

int trace_command(const std::vector<std::string>& arguments) {
  std::string target;
  std::vector<std::filesystem::path> traces;
  CLI::App app("Tools for the traces that the ranks of a job write.", "lockstep trace");
  CLI::App* const merge = app.add_subcommand(
      "merge",
      "Merges the traces of the ranks of a job into one timeline for ui.perfetto.dev or "
      "chrome://tracing:\n"
      "operators, forward, backward and the exchange of gradients of each rank. Clocks of "
      "different\n"
      "machines are aligned to within tens of us by the barriers that a TraceCallback records.");
  merge->add_option("OUT", target, "the timeline, written atomically")->required();
  merge
      ->add_option("TRACES", traces, "the trace files, or a folder with the traces of one timeline")
      ->required();
  app.footer(
      "Exit code: 0; 1 when a file cannot be read or written, or a trace is damaged; 2 for a "
      "wrong\n"
      "command line, or for files that are not traces.\n\n"
      "Examples:\n"
      "  lockstep trace merge timeline.json runs/digits/traces\n"
      "  lockstep trace merge timeline.json trace.rank0.json trace.rank1.json");
  if (!parse_flags(app, arguments)) return 0;
  if (traces.size() == 1 && std::filesystem::is_directory(traces.front())) {
    traces = rank_traces_in(traces.front());
  }
  const MergedTrace merged = merge_traces(target, traces);
  constexpr double kNotableUs = 0.5;
  char clocks[64] = "";
  if (merged.largest_shift_us > kNotableUs) {
    std::snprintf(clocks, sizeof clocks, "; clocks shifted by up to %.0f us",
                  merged.largest_shift_us);
  }
  std::printf("%s: %s of %s%s; open it in ui.perfetto.dev\n", target.c_str(),
              count_text(merged.events, "event").c_str(),
              count_text(merged.ranks.size(), "rank").c_str(), clocks);
  return 0;
}

}  // namespace lockstep::inline internal
