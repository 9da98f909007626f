#include "launcher/cli/live_options.h"

#include <map>

#include "launcher/cli/live_help.h"
#include "launcher/command_line/command_help.h"
#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/split_arguments.h"
#include "launcher/job/launch_options.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

// Flags and words in any order.
struct LiveArguments {
  std::map<std::string, std::string> flags;  ///< the name, and its value or nothing
  std::vector<std::string> words;
  std::string help;  ///< what to print instead

  bool has(const char* flag) const { return flags.contains(flag); }
  std::string value(const char* flag) const { return has(flag) ? flags.at(flag) : ""; }
};

LiveArguments split_live(std::vector<std::string> arguments, const CommandHelp& help) {
  LiveArguments result;
  if (arguments == std::vector<std::string>{kDescribeCommand}) {
    result.help = describe(help);
    return result;
  }
  const std::vector<FlagName> known = flag_names(help);
  while (!arguments.empty()) {
    const SplitArguments split = split_arguments(arguments, known);
    for (const std::string& flag : split.flags) {
      const auto [name, value] = name_and_value(flag);
      result.flags[name] = value;
    }
    arguments = split.program;
    if (arguments.empty()) break;
    result.words.push_back(arguments.front());
    arguments.erase(arguments.begin());
  }
  if (result.has("help")) result.help = help_text(help);
  return result;
}

// At most one word: a job.
LiveArguments split_for_job(const char* command, const std::vector<std::string>& arguments,
                            const CommandHelp& help) {
  LiveArguments split = split_live(arguments, help);
  if (split.words.size() > 1) {
    throw UsageError(concat(command, ": takes one job, but has '", split.words[0], "' and '",
                            split.words[1], "'"));
  }
  split.words.resize(1);
  return split;
}

}  // namespace

PsOptions parse_ps_options(const std::vector<std::string>& arguments) {
  const LiveArguments split = split_for_job("ps", arguments, ps_help());
  return {.job = split.words[0],
          .workers = split.has("workers"),
          .json = split.has("json"),
          .help = split.help};
}

StopOptions parse_stop_options(const std::vector<std::string>& arguments) {
  const LiveArguments split = split_for_job("stop", arguments, stop_help());
  const StopOptions options{.job = split.words[0],
                            .machine_only = split.has("machine-only"),
                            .now = split.has("now"),
                            .help = split.help};
  if (options.now && options.machine_only) {
    throw UsageError("stop: --now ends the job on all machines, which --machine-only rules out");
  }
  return options;
}

ScaleOptions parse_scale_options(const std::vector<std::string>& arguments) {
  const LiveArguments split = split_live(arguments, scale_help());
  const std::vector<std::string>& words = split.words;
  ScaleOptions options{.help = split.help};
  if (!options.help.empty()) return options;
  if (words.empty() || words.size() > 2) {
    throw UsageError(
        "scale: give a job and the number of its workers here, as in: lockstep scale train 4");
  }
  const auto count = parse_number<int>(words.back());
  if (!count || *count < 1 || *count > kMostWorkers) {
    throw UsageError(concat("scale: '", words.back(), "' workers: give a number from 1 to ",
                            kMostWorkers, "; lockstep stop ends a job"));
  }
  options.worker_count = *count;
  if (words.size() == 2) options.job = words.front();
  return options;
}

LogsOptions parse_logs_options(const std::vector<std::string>& arguments) {
  const LiveArguments split = split_for_job("logs", arguments, logs_help());
  LogsOptions options{.target = split.words[0], .follow = split.has("follow"), .help = split.help};
  if (split.has("lines")) {
    options.choice.last_lines =
        static_cast<std::uint64_t>(int_of("--lines", split.value("lines"), 0));
  }
  if (split.has("attempt")) {
    options.choice.attempt = int_of("--attempt", split.value("attempt"), 0);
  }
  options.choice.local_ranks = local_ranks_of("--local-rank", split.value("local-rank"));
  return options;
}

}  // namespace lockstep::inline internal
