// The binary `lockstep`. It does not load LibTorch, so that it starts in milliseconds.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "launcher/cli/command.h"
#include "launcher/command_line/command_help.h"
#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "launcher/remote/attend.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/process/find_program.h"
#include "tools/commands.h"

namespace lockstep::inline internal {
namespace {

constexpr std::array kJobCommands = {
    Command{"run", "start a program on several processes, on one machine or many", run_command},
    Command{"ps", "list the running jobs of this machine", ps_command},
    Command{"logs", "print or follow the logs of a job's workers", logs_command},
    Command{"scale", "change the number of workers of a running job", scale_command},
    Command{"stop", "stop a running job", stop_command},
};

// Without a function: it loads LibTorch, and is the program lockstep-<name> beside this one.
constexpr std::array kTools = {
    Command{"new", "create a project that builds and trains", new_command},
    Command{"test", "check that two ranks can train together on this machine", test_command},
    Command{"doctor", "check one machine or several, and say what to fix", doctor_command},
    Command{"bench", "measure the backends, or the launcher, on this machine", bench_command},
    Command{"report", "write a page about a training run: curves, ranks, machine", report_command},
    Command{"audit", "prove which samples a training run used in each epoch", audit_command},
    Command{"replay", "replay a step of a run and compare its bits with the log", nullptr},
    Command{"snapshot", "list, verify, show, compare, export, convert and delete snapshots",
            nullptr},
    Command{"trace", "merge the traces of all ranks into one timeline", trace_command},
    Command{"estimate", "estimate memory and traffic of a model", estimate_command},
    Command{"env", "print facts for a bug report, and the environment variables", env_command},
};

constexpr const char* kAttendHelp = R"(Usage: lockstep attend

Runs a command for another machine: lockstep run --hosts and lockstep doctor --hosts start it over ssh.
It reads the command from stdin, forwards signals, and stops the command when the connection is lost.
Do not start it yourself.
)";

std::string help_text() {
  std::string text =
      "Lockstep: distributed data-parallel training for C++ programs on LibTorch\n\n"
      "Usage: lockstep <command> [options]\n";
  const auto add = [&](const char* title, const auto& commands) {
    text += concat("\n", title, ":\n");
    for (const Command& command : commands) {
      const std::string_view name = command.name;
      text += concat("  ", name, std::string(10 - name.size(), ' '), command.summary, "\n");
    }
  };
  add("Jobs", kJobCommands);
  add("Tools", kTools);
  text +=
      "\nOptions:\n"
      "  -h, --help  show this text; lockstep <command> --help explains one command\n"
      "  --version   show the version\n\n"
      "Examples:\n"
      "  lockstep run --standalone --nproc-per-node=2 ./train\n"
      "  lockstep ps\n"
      "  lockstep doctor\n";
  return text;
}

// All commands, as actions.
CommandHelp own_help() {
  CommandHelp help{
      .name = "lockstep",
      .usage = "<command> [options]",
      .description = "Distributed data-parallel training for C++ programs on LibTorch."};
  const auto add = [&](const auto& entries) {
    for (const auto& entry : entries) {
      help.actions.push_back(
          {.name = concat("lockstep ", entry.name), .description = entry.summary});
    }
  };
  add(kJobCommands);
  add(kTools);
  return help;
}

const Command* find_command(std::string_view name) {
  const auto has_name = [&](const Command& command) { return command.name == name; };
  if (const auto* const found = std::ranges::find_if(kJobCommands, has_name);
      found != kJobCommands.end()) {
    return found;
  }
  const auto* const found = std::ranges::find_if(kTools, has_name);
  return found == kTools.end() ? nullptr : found;
}

[[noreturn]] void become_tool(const std::string& program,
                              const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  become_program(words);
}

// lockstep-<name> beside this program or in PATH: a command that somebody has added.
std::optional<std::string> find_tool_of_users(const std::string& name) try {
  if (name.find('/') != std::string::npos) return std::nullopt;
  const std::string program = concat("lockstep-", name);
  std::error_code ignored;
  const std::filesystem::path beside = program_folder() / program;
  return std::filesystem::exists(beside, ignored) ? beside.string() : find_program(program);
} catch (const ProgramError&) {
  return std::nullopt;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    throw UsageError("no command given; lockstep --help lists them, lockstep run starts a job");
  }
  const std::string& name = arguments.front();
  if (name == "help" && arguments.size() > 1) return dispatch({arguments[1], "--help"});
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  if (name == kDescribeCommand) {
    std::fputs(describe(own_help()).c_str(), stdout);
    return 0;
  }
  if (name == "--version") {
    std::puts("lockstep " LOCKSTEP_VERSION);
    return 0;
  }
  if (name == "attend") {
    if (arguments.size() == 1) return attend();
    if (arguments[1] != "--help" && arguments[1] != "-h") {
      throw UsageError(concat("attend: takes no arguments, not '", arguments[1], "'"));
    }
    std::fputs(kAttendHelp, stdout);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kJobCommands) names.emplace_back(command.name);
  for (const Command& command : kTools) names.emplace_back(command.name);
  if (const Command* const command = find_command(name)) {
    if (command->run != nullptr) return command->run({arguments.begin() + 1, arguments.end()});
    become_tool(program_beside(concat("lockstep-", name), name), arguments);
  }
  if (name.starts_with("-")) {
    throw UsageError(concat("unknown flag ", name,
                            " before the command; flags of a command follow ", "it: lockstep run ",
                            name));
  }
  if (const auto program = find_tool_of_users(name)) become_tool(*program, arguments);
  const std::string suggestion = did_you_mean(name, names);
  throw UsageError(concat("unknown command '", name, "'",
                          suggestion.empty() ? "; lockstep --help lists them" : suggestion));
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::dispatch);
}
