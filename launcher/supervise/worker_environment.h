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

/// The number by which torchrun calls a generation, in TORCHELASTIC_RESTART_COUNT and in the names
/// of log folders: from 0.
inline int torchrun_attempt(std::uint64_t generation) {
  return static_cast<int>(generation) - 1;
}

/// What a worker's environment depends on beside the options.
struct GenerationFacts {
  std::uint64_t generation = 1;
  /// Where the workers of this machine stand, and where the job's store is.
  NodePlacement placement{};
  /// The store's socket, which rank 0 inherits.
  std::optional<int> store_listen_fd{};
  /// Of how many processors the workers of this machine have the time.
  int allowed_cpus = 1;
  /// That is less than there are processors to run on: a control group limits it.
  bool limited_time = false;
  /// The processors of each worker, by local rank; empty: all processors.
  BindingPlan processors{};
  /// By which all processes of the job are found; empty: none.
  std::string job_mark{};
};

/// NAME=value lines, as in environ.
using Environment = std::vector<std::string>;

/// Whether workers may differ in this line NAME=value though one is forked from what another has
/// loaded (lockstep/os/process/fork_server.h): no library reads the variable while it is loaded.
bool is_of_one_worker(std::string_view line);

/// The environment of one worker: what the launcher has, with torchrun's variables set.
/// OMP_NUM_THREADS is set where it was not, to this worker's share of the processors; not for a
/// single worker that has the time of all, which finds their number itself.
Environment worker_environment(const LaunchOptions& options, const GenerationFacts& facts,
                               int local_rank, const std::string& error_file,
                               const Environment& inherited);

}  // namespace lockstep::inline internal
