#include "tools/report/report_options.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

ReportOptions parse_report_options(const std::vector<std::string>& arguments) {
  ReportOptions options;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", options.help);
  app.add_option("RUN", options.folder);
  app.add_option("-o,--output", options.output);
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("report: ") + error.what() +
                     "; lockstep report --help lists the flags");
  }
  if (!options.help && options.folder.empty()) {
    throw UsageError("report: of which training? As in: lockstep report runs/digits");
  }
  return options;
}

const char* report_help() {
  return R"(Usage: lockstep report RUN [--output=FILE]

Makes a page of what the folder of a training (default_root_dir of a Trainer) says of it: learning
curves, learning rate, throughput and every other metric over the steps; what each rank does, by the
newest timeline in traces/; runs, how they ended and where they went on; whether each sample was
trained once; snapshots, the machine and versions. One file of HTML, light or dark as the browser
is, that needs no network: to be sent and kept.

  -o, --output=FILE  where the page goes (default RUN/report.html)
  -h, --help         this text

Of the folder metrics.jsonl must be there; runs.jsonl, traces/, data/, snapshots/ and best/ may be.
A damaged line is left out, and told on the page and here.

Exit code: 0 when the page is written, 1 when it could not be, 2 for a wrong command line or a folder
without metrics.

Example:
  lockstep report runs/digits
)";
}

}  // namespace lockstep::inline internal
