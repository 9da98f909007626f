#include "lockstep/cli/data_options.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

DataOptions parse_data_options(const std::vector<std::string>& arguments) {
  DataOptions options;
  if (!arguments.empty() && arguments.front() == "help") {
    return {.help = true, .folder = {}, .json = false};
  }
  if (arguments.empty() || (arguments.front() != "audit" && !arguments.front().starts_with("-"))) {
    throw UsageError((arguments.empty() ? "data: no action"
                                        : "data: unknown action '" + arguments.front() + "'") +
                     std::string("; as in: lockstep data audit runs/digits/data"));
  }
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", options.help);
  CLI::App* const audit = app.add_subcommand("audit");
  audit->set_help_flag();
  audit->add_flag("-h,--help", options.help);
  audit->add_option("DIR", options.folder);
  audit->add_flag("--json", options.json);
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("data: ") + error.what() +
                     "; lockstep data --help lists the flags");
  }
  if (!options.help && options.folder.empty()) {
    throw UsageError("data audit: of which folder? As in: lockstep data audit runs/digits/data");
  }
  return options;
}

const char* data_help() {
  return R"(Usage: lockstep data audit DIR [--json]

Proves from the log of a training run that it had each sample of each epoch once, however often it was
killed, resumed and given another number of ranks. The log has what each rank was given, a line a
batch: samples.rank0.jsonl and so on in the folder that AcceleratorOptions::data_log names. Where a run
went on from a snapshot, what runs before it were given later does not count: that state is lost.

  DIR         the folder of the log
  --json      print the result as JSON
  -h, --help  this text

Exit code: 0 when each sample was had once, 1 when not or when the log cannot be read, 2 for a wrong
command line or a folder without a log.

Example:
  $ lockstep data audit runs/digits/data
  loader 0: 1438 samples, seed 0, 3 runs on 2 to 4 ranks, 5 batches made again
    epoch 0: 1438 samples, each once
    epoch 1: 640 of 1438 samples so far, none twice
)";
}

}  // namespace lockstep
