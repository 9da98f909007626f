#include "lockstep/cli/live_options.h"

#include <CLI/CLI.hpp>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Flags and arguments in any order.
void parse_live(CLI::App& app, const char* command, const std::vector<std::string>& arguments,
                bool& help) {
  app.set_help_flag();
  app.add_flag("-h,--help", help);
  try {
    // It takes them last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        concat(command, ": ", error.what(), "; lockstep ", command, " --help shows its flags"));
  }
}

}  // namespace

PsOptions parse_ps_options(const std::vector<std::string>& arguments) {
  PsOptions options;
  CLI::App app;
  app.add_option("JOB", options.job);
  app.add_flag("-w,--workers", options.workers);
  app.add_flag("--json", options.json);
  parse_live(app, "ps", arguments, options.help);
  return options;
}

StopOptions parse_stop_options(const std::vector<std::string>& arguments) {
  StopOptions options;
  CLI::App app;
  app.add_option("JOB", options.job);
  app.add_flag("--machine-only", options.machine_only);
  app.add_flag("--now", options.now);
  parse_live(app, "stop", arguments, options.help);
  if (options.now && options.machine_only) {
    throw UsageError("stop: --now ends the job on all machines, which --machine-only rules out");
  }
  return options;
}

}  // namespace lockstep
