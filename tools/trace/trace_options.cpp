#include "tools/trace/trace_options.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

TraceCommandOptions parse_trace_options(const std::vector<std::string>& arguments) {
  TraceCommandOptions options;
  if (!arguments.empty() && arguments.front() == "help")
    return {.help = true, .target = {}, .sources = {}};
  if (arguments.empty() || (arguments.front() != "merge" && !arguments.front().starts_with("-"))) {
    throw UsageError((arguments.empty() ? "trace: do what?"
                                        : "trace: unknown action '" + arguments.front() + "';") +
                     std::string(" As in: lockstep trace merge timeline.json runs/digits/traces"));
  }
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", options.help);
  CLI::App* const merge = app.add_subcommand("merge");
  merge->set_help_flag();
  merge->add_flag("-h,--help", options.help);
  merge->add_option("OUT", options.target);
  merge->add_option("TRACES", options.sources);
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("trace: ") + error.what() +
                     "; lockstep trace --help says what it takes");
  }
  if (!options.help && options.sources.empty()) {
    throw UsageError(
        "trace merge: into which file, and which traces? As in: lockstep trace merge timeline.json "
        "runs/digits/traces");
  }
  return options;
}

const char* trace_help() {
  return R"(Usage: lockstep trace merge OUT FILE...
       lockstep trace merge OUT DIR

Makes one timeline of the traces that the ranks of a job have written, a process a rank, for
ui.perfetto.dev and chrome://tracing: every operator, forward and backward, and the exchange of
gradients, as "lockstep::wait for bucket 3".

  OUT    the timeline; it holds what it held before, or all of the new one
  FILE   <name>.rank<number>.json, as lockstep::Trace and TraceCallback write them
  DIR    a folder with those of one timeline

Times are by the clock of each rank's machine. Traces of a TraceCallback hold some barriers, by which
clocks that differ are put right: to some ten microseconds.

Exit code: 0 when the timeline is written, 1 when it could not be, or a file is damaged, 2 for a wrong
command line or files of other kinds.

Examples:
  lockstep trace merge timeline.json runs/digits/traces
  lockstep trace merge timeline.json trace.rank0.json trace.rank1.json
)";
}

}  // namespace lockstep::inline internal
