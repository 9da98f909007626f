// The program `lockstep-test`, which `lockstep test` becomes.
#include <cstdio>

#include "launcher/cli/run_job.h"
#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::int64_t kMostRanks = 1024;

constexpr const char* kHelp =
    "Usage: lockstep test [--nproc-per-node=N]\n\n"
    "Checks that ranks can train together on this machine: starts some, compares collectives with\n"
    "known results, and a short training with that of one process. The exit code is 0 where all "
    "is\n"
    "well. lockstep doctor looks for the causes where it is not; it checks several machines, "
    "too.\n\n"
    "Flags:\n"
    "  --nproc-per-node=N   ranks (default 2)\n"
    "  -h, --help           this text\n\n"
    "Examples:\n"
    "  lockstep test\n"
    "  LOCKSTEP_BACKEND=gloo lockstep test --nproc-per-node=4\n";

int test_command(const std::vector<std::string>& arguments) {
  const SplitArguments split = split_arguments(
      arguments,
      {{.name = "nproc-per-node", .takes_value = true}, {.name = "help", .letter = 'h'}});
  int ranks = 2;
  for (const std::string& flag : split.flags) {
    const auto [name, value] = name_and_value(flag);
    if (name == "help") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    ranks = static_cast<int>(integer_of("--nproc-per-node", value, 1, kMostRanks));
  }
  if (!split.program.empty()) {
    throw UsageError(concat("lockstep test takes no argument, but has '", split.program.front(),
                            "'; to run a program's own tests, start them by lockstep run"));
  }
  return run_job(
      {.program = {.name = program_beside("lockstep-test-rank", "test"), .arguments = {}},
       .worker_count = ranks,
       .role = "test",
       .run_id = "test"});
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::test_command);
}
