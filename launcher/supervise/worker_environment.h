#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// torchrun's number of a generation, from 0, as in TORCHELASTIC_RESTART_COUNT and in names of log
/// folders.
inline int torchrun_attempt(std::uint64_t generation) {
  return static_cast<int>(generation) - 1;
}

/// Inputs of a worker's environment besides the options.
struct GenerationFacts {
  std::uint64_t generation = 1;
  /// Ranks of this machine's workers, and the address of the job's store.
  NodePlacement placement{};
  /// The store's socket, which rank 0 inherits.
  std::optional<int> store_listen_fd{};
  /// Number of processors whose time this machine's workers may use.
  int allowed_cpus = 1;
  /// A control group limits the time to less than all processors that they may run on.
  bool limited_time = false;
  /// Processors of each worker, by local rank; empty: all processors.
  BindingPlan processors{};
  /// The job's mark, by which all its processes are found; empty: none.
  std::string job_mark{};
};

/// NAME=value lines, as in environ.
using Environment = std::vector<std::string>;

/// Whether this line NAME=value may differ between a worker and another that is forked from it
/// (lockstep/os/process/fork_server.h): no library reads the variable while it is loaded.
bool is_of_one_worker(std::string_view line);

/// The environment of one worker: the launcher's, with torchrun's variables. Sets OMP_NUM_THREADS,
/// unless it is set, to this worker's share of the processors; not for a single worker with the
/// time of all processors, because OpenMP finds their number.
Environment worker_environment(const LaunchOptions& options, const GenerationFacts& facts,
                               int local_rank, const std::string& error_file,
                               const Environment& inherited);

}  // namespace lockstep::inline internal
