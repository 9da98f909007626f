#include "launcher/cli/run_job.h"
#include "launcher/command_line/program_beside.h"
#include "tools/commands.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {

int test_command(const std::vector<std::string>& arguments) {
  int ranks = 2;
  CLI::App app(
      "Checks that ranks can train together on this machine: compares collectives with known\n"
      "results, and a short training run with that of one process. If it fails, run lockstep "
      "doctor.",
      "lockstep test");
  add_integer(app, "--nproc-per-node", ranks, 1, "number of ranks (default 2)");
  app.footer(
      "Exit code: 0: all checks passed; 2: wrong command line; otherwise the exit code of the "
      "failed\nrank.\n\n"
      "Examples:\n"
      "  lockstep test\n"
      "  LOCKSTEP_BACKEND=gloo lockstep test --nproc-per-node=4");
  if (!parse_flags(app, arguments)) return 0;
  return run_job(
      {.program = {.name = program_beside("lockstep-test-rank", "test"), .arguments = {}},
       .worker_count = ranks,
       .role = "test",
       .run_id = "test"});
}

}  // namespace lockstep::inline internal
