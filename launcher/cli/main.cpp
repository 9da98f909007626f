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
#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "launcher/remote/attend.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/nearest_name.h"
#include "lockstep/os/process/find_program.h"

namespace lockstep::inline internal {
namespace {

constexpr std::array kCommands = {
    Command{"run", "start a program on several processes", run_command},
    Command{"ps", "show the jobs that run on this machine", ps_command},
    Command{"logs", "print or follow what the workers of a job write", logs_command},
    Command{"scale", "change the number of workers of a job that runs", scale_command},
    Command{"stop", "end a job that runs", stop_command},
};

// Programs of their own, lockstep-<name> beside this one: tools/<name>.
struct Tool {
  const char* name;
  const char* summary;
};
constexpr std::array kTools = {
    Tool{"new", "write a project that builds and trains at once"},
    Tool{"test", "check that two ranks can train together on this machine"},
    Tool{"doctor", "check this machine, or several, and say what to mend"},
    Tool{"bench", "time the backends, or the launcher, on this machine"},
    Tool{"report", "make a page of a training: curves, ranks, runs, machine"},
    Tool{"audit", "prove which samples a training had in each epoch"},
    Tool{"snapshot", "list, verify, show, compare, export and delete snapshots"},
    Tool{"trace", "make one timeline of the traces of all ranks"},
    Tool{"estimate", "say what a model will need in memory and traffic"},
    Tool{"env", "show what a bug report needs, and the variables that Lockstep reads"},
};

std::string help_text() {
  std::string text =
      "Lockstep: distributed training for C++ programs on LibTorch\n\n"
      "Usage: lockstep <command> [flags]\n\nCommands:\n";
  const auto add = [&](std::string_view name, std::string_view summary) {
    text += concat("  ", name, std::string(10 - name.size(), ' '), summary, "\n");
  };
  for (const Command& command : kCommands) add(command.name, command.summary);
  for (const Tool& tool : kTools) add(tool.name, tool.summary);
  text +=
      "\nFlags:\n"
      "  -h, --help    show this text; lockstep <command> --help explains one command\n"
      "  --version     show the version\n\n"
      "Examples:\n"
      "  lockstep run --standalone --nproc-per-node=2 ./train\n"
      "  lockstep run --help\n";
  return text;
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
  if (name == "--version") {
    std::puts("lockstep " LOCKSTEP_VERSION);
    return 0;
  }
  // What --hosts starts on other machines; not for people.
  if (name == "attend") return attend();
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(command.name);
  }
  for (const Tool& tool : kTools) {
    if (name == tool.name) become_tool(program_beside(concat("lockstep-", name), name), arguments);
    names.emplace_back(tool.name);
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
