#include <cstdio>

#include "lockstep/cli/bench_options.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/program_beside.h"
#include "lockstep/launch/launcher.h"

namespace lockstep {

int bench_command(const std::vector<std::string>& arguments) {
  const BenchOptions options = parse_bench_options(arguments);
  if (options.help) {
    std::fputs(bench_help(), stdout);
    return 0;
  }
  // The ranks' program loads LibTorch, which this one must not.
  return launch(
      {.program = {.name = program_beside("lockstep-bench", "bench"), .arguments = arguments},
       .worker_count = options.nproc_per_node,
       .role = "bench",
       .run_id = "bench"});
}

}  // namespace lockstep
