#include "lockstep/cli/live_options.h"

#include <sstream>

#include <CLI/CLI.hpp>

#include "lockstep/agent/live_answers.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/parse_number.h"

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

int number_of(const char* flag, const std::string& text) {
  const auto number = parse_number<int>(text);
  if (!number || *number < 0) throw UsageError(concat(flag, "='", text, "': give numbers from 0"));
  return *number;
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

ScaleOptions parse_scale_options(const std::vector<std::string>& arguments) {
  ScaleOptions options;
  std::vector<std::string> words;
  CLI::App app;
  app.add_option("WORDS", words);
  parse_live(app, "scale", arguments, options.help);
  if (options.help) return options;
  if (words.empty() || words.size() > 2) {
    throw UsageError(
        "scale: give a job and the number of its workers here, as in: lockstep scale train 4");
  }
  const auto count = parse_number<int>(words.back());
  if (!count || *count < 1 || *count > kMostWorkersToAskFor) {
    throw UsageError(concat("scale: '", words.back(), "' workers: give a number from 1 to ",
                            kMostWorkersToAskFor, "; lockstep stop ends a job"));
  }
  options.worker_count = *count;
  if (words.size() == 2) options.job = words.front();
  return options;
}

LogsOptions parse_logs_options(const std::vector<std::string>& arguments) {
  LogsOptions options;
  std::string lines;
  std::string local_ranks;
  std::string attempt;
  CLI::App app;
  app.add_option("TARGET", options.target);
  app.add_flag("-f,--follow", options.follow);
  app.add_option("-n,--lines", lines);
  app.add_option("--local-rank", local_ranks);
  app.add_option("--attempt", attempt);
  parse_live(app, "logs", arguments, options.help);
  if (!lines.empty()) {
    options.choice.last_lines = static_cast<std::uint64_t>(number_of("logs: --lines", lines));
  }
  if (!attempt.empty()) options.choice.attempt = number_of("logs: --attempt", attempt);
  std::istringstream entries(local_ranks);
  for (std::string entry; std::getline(entries, entry, ',');) {
    options.choice.local_ranks.push_back(number_of("logs: --local-rank", entry));
  }
  return options;
}

}  // namespace lockstep
