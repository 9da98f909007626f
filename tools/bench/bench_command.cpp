#include <filesystem>

#include "launcher/cli/run_job.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/find_program.h"
#include "tools/bench/bench_options.h"
#include "tools/commands.h"

namespace lockstep::inline internal {
namespace {

// Returns the path as text.
std::string benchmark_file(const char* operation, const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path.string();
  throw ProgramError(concat(operation, ": there is no ", path.string(),
                            "; the wheel has only `lockstep bench all-reduce`: build Lockstep "
                            "from source"),
                     ProgramError::kNotFound);
}

// A script in Python, which stands in the same place in the build folder and where it is installed.
[[noreturn]] void time_the_launcher(const std::vector<std::string>& arguments) {
  const std::filesystem::path binaries = program_folder();
  const std::string script =
      benchmark_file("bench launch", binaries.parent_path() / "share/lockstep/bench/launch/run.py");
  std::vector<std::string> words = {find_python(), script, "--binaries=" + binaries.string()};
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
  const std::string ranks = benchmark_file("bench", program_folder() / "lockstep-bench-rank");
  return run_job({.program = {.name = ranks, .arguments = arguments},
                  .worker_count = options->nproc_per_node,
                  .role = "bench",
                  .run_id = "bench"});
}

}  // namespace lockstep::inline internal
