#include "tools/audit/audit_options.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

AuditOptions parse_audit_options(const std::vector<std::string>& arguments) {
  AuditOptions options;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", options.help);
  app.add_option("DIR", options.folder);
  app.add_flag("--json", options.json);
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("audit: ") + error.what() +
                     "; lockstep audit --help lists the flags");
  }
  if (!options.help && options.folder.empty()) {
    throw UsageError("audit: of which folder? As in: lockstep audit runs/digits/data");
  }
  return options;
}

const char* audit_help() {
  return R"(Usage: lockstep audit DIR [--json]

Proves from the log of a training that it had each sample of each epoch once, however often it was
killed, resumed and given another number of ranks. The log is what each rank was given, a line a
batch: samples.rank0.jsonl and so on in the folder that AcceleratorOptions::data_log names. Where a run
went on from a snapshot, what runs before it were given later does not count: that state is lost.

  --json         print the result as JSON
  -h, --help     this text

Exit code: 0 when it holds, 1 when it does not, 2 for a wrong command line or folder.

Example:
  $ lockstep audit runs/digits/data
  loader 0: 1438 samples, seed 0, 3 runs on 2 to 4 ranks, 5 batches made again
    epoch 0: 1438 samples, each once
    epoch 1: 640 of 1438 samples so far, none twice
)";
}

}  // namespace lockstep::inline internal
