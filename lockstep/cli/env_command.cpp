#include <cstdio>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/split_arguments.h"

namespace lockstep {
namespace {

constexpr const char* kHelp =
    "Usage: lockstep env\n\n"
    "Shows every environment variable that Lockstep reads: its type, what it does and, where it "
    "is\n"
    "set, its value.\n\n"
    "Example:\n"
    "  LOCKSTEP_TIMEOUT_S=60 lockstep env\n";

constexpr const char* kFlagVariables =
    "PET_<FLAG>\n"
    "    default of a flag of lockstep run: PET_NPROC_PER_NODE=2 for --nproc-per-node=2\n";

}  // namespace

int env_command(const std::vector<std::string>& arguments) {
  const SplitArguments split = split_arguments(arguments, {{.name = "help", .letter = 'h'}});
  if (!split.flags.empty()) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!split.program.empty()) {
    throw UsageError("lockstep env takes no argument, but has '" + split.program.front() + "'");
  }
  for (const env::Variable* variable : env::all()) {
    auto value = env::text(*variable);
    if (value && variable->is_secret) value = "(set; not shown)";
    std::printf("%s (%s)%s%s\n    %s\n", variable->name, variable->type, value ? " = " : "",
                value.value_or("").c_str(), variable->help);
  }
  std::fputs(kFlagVariables, stdout);
  for (const std::string& line : env::everything()) {
    if (line.starts_with("PET_")) std::printf("    %s\n", line.c_str());
  }
  return 0;
}

}  // namespace lockstep
