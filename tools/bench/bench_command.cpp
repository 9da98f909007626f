#include <filesystem>

#include "launcher/cli/run_job.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/find_program.h"
#include "tools/bench/bench_options.h"
#include "tools/commands.h"

namespace lockstep::inline internal {
namespace {

// A script in Python, which stands in the same place in the build folder and where it is installed.
[[noreturn]] void time_the_launcher(const std::vector<std::string>& arguments) {
  const std::filesystem::path binaries = program_folder();
  const std::filesystem::path script =
      binaries.parent_path() / "share/lockstep/bench/launch/run.py";
  std::error_code ignored;
  if (!std::filesystem::exists(script, ignored)) {
    throw ProgramError(
        concat("bench launch: there is no ", script.string(), "; install Lockstep again"),
        ProgramError::kNotFound);
  }
  std::vector<std::string> words = {find_python(), script.string(),
                                    "--binaries=" + binaries.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  become_program(words);
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments.front() == kLaunchBenchmark) {
    time_the_launcher({arguments.begin() + 1, arguments.end()});
  }
  const std::optional<BenchOptions> options = parse_bench_options(arguments);
  if (!options) return 0;
  // The ranks' program loads LibTorch, which this one must not.
  return run_job(
      {.program = {.name = program_beside("lockstep-bench-rank", "bench"), .arguments = arguments},
       .worker_count = options->nproc_per_node,
       .role = "bench",
       .run_id = "bench"});
}

}  // namespace lockstep::inline internal
