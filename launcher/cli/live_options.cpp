#include "launcher/cli/live_options.h"

#include <map>

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

  bool has(const char* flag) const { return flags.contains(flag); }
  std::string value(const char* flag) const { return has(flag) ? flags.at(flag) : ""; }
};

// All of them know --help.
LiveArguments split_live(std::vector<std::string> arguments, std::vector<FlagName> known) {
  known.push_back({.name = "help", .letter = 'h'});
  LiveArguments result;
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
  return result;
}

// At most one word: a job.
LiveArguments split_for_job(const char* command, const std::vector<std::string>& arguments,
                            const std::vector<FlagName>& known) {
  LiveArguments split = split_live(arguments, known);
  if (split.words.size() > 1) {
    throw UsageError(concat(command, ": takes one job, but has '", split.words[0], "' and '",
                            split.words[1], "'"));
  }
  split.words.resize(1);
  return split;
}

}  // namespace

PsOptions parse_ps_options(const std::vector<std::string>& arguments) {
  const LiveArguments split =
      split_for_job("ps", arguments, {{.name = "workers", .letter = 'w'}, {.name = "json"}});
  return {.job = split.words[0],
          .workers = split.has("workers"),
          .json = split.has("json"),
          .help = split.has("help")};
}

StopOptions parse_stop_options(const std::vector<std::string>& arguments) {
  const LiveArguments split =
      split_for_job("stop", arguments, {{.name = "machine-only"}, {.name = "now"}});
  const StopOptions options{.job = split.words[0],
                            .machine_only = split.has("machine-only"),
                            .now = split.has("now"),
                            .help = split.has("help")};
  if (options.now && options.machine_only) {
    throw UsageError("stop: --now ends the job on all machines, which --machine-only rules out");
  }
  return options;
}

ScaleOptions parse_scale_options(const std::vector<std::string>& arguments) {
  const LiveArguments split = split_live(arguments, {});
  const std::vector<std::string>& words = split.words;
  ScaleOptions options{.help = split.has("help")};
  if (options.help) return options;
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
  const LiveArguments split = split_for_job("logs", arguments,
                                            {{.name = "follow", .letter = 'f'},
                                             {.name = "lines", .letter = 'n', .takes_value = true},
                                             {.name = "local-rank", .takes_value = true},
                                             {.name = "attempt", .takes_value = true}});
  LogsOptions options{
      .target = split.words[0], .follow = split.has("follow"), .help = split.has("help")};
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
