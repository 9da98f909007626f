#include <cstdio>
#include <filesystem>
#include <system_error>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/bench_options.h"
#include "lockstep/cli/command.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/os/find_program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorker = "lockstep-bench";

// The ranks' program lies beside this one: it loads LibTorch, which this one must not.
std::string worker_beside_this_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) throw SystemError("find this program (/proc/self/exe)", error.value());
  const fs::path worker = self.parent_path() / kWorker;
  if (!fs::exists(worker, error)) {
    throw ProgramError(concat("bench: there is no ", worker.string(),
                              "; build the target lockstep-bench, or install Lockstep again"),
                       ProgramError::kNotFound);
  }
  return worker.string();
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
  const BenchOptions options = parse_bench_options(arguments);
  if (options.help) {
    std::fputs(bench_help(), stdout);
    return 0;
  }
  return launch({.program = {.name = worker_beside_this_program(), .arguments = arguments},
                 .worker_count = options.nproc_per_node,
                 .role = "bench",
                 .run_id = "bench"});
}

}  // namespace lockstep
