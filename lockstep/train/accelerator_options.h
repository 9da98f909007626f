#pragma once

#include <cstdint>
#include <string>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel_options.h"

namespace lockstep {

/// What becomes of a step whose gradients, averaged over the ranks, are not all finite. Looking
/// costs next to nothing where the group shares memory, elsewhere a pass over the gradients.
enum class NonFinite {
  kIgnore,  ///< The optimizer takes them.
  kReport,  ///< The same, and a warning names ranks, step and parameters.
  kSkip,    ///< A warning, and the optimizer does not step, on no rank.
  kStop,    ///< An Error on all ranks, with the parameters as they were.
};

/// What accelerate.Accelerator calls its options: docs/accelerator.md. All ranks must give the
/// same.
struct AcceleratorOptions {
  /// In which dtype forward of prepared models computes, where Autocast allows it.
  Precision precision = Precision::kFloat32;
  /// How many batches, each in its accumulate(), make up one step of the optimizers.
  int gradient_accumulation_steps = 1;
  /// The batches of loaders that are prepared are those of all ranks together; otherwise each
  /// rank's, so that more ranks make larger batches.
  bool split_batches = false;
  /// Each step has so many shards, whatever the number of ranks, and a training gives the same bits
  /// on any number of them: docs/guides/same-bits.md. Batches of the loader that is prepared first
  /// are shards, of which a rank has some one after the other; optimizers and schedulers step with
  /// the last of these. Call backward() once for each. More ranks have no work; fixed for the
  /// life of the training. 0: none; one batch per rank and step.
  int logical_shards = 0;
  /// With logical_shards: threads of each rank's operators, whatever OMP_NUM_THREADS says, as they
  /// decide how operators divide their sums.
  int compute_threads = 1;
  /// With logical_shards: ranks whose kernels may round otherwise (other instructions, another
  /// LibTorch, other settings) get a warning instead of an error. The same on all ranks.
  bool allow_kernel_differences = false;
  /// Seeds the order of samples, and with logical_shards the random numbers of each shard.
  std::uint64_t seed = 0;
  NonFinite non_finite = NonFinite::kIgnore;
  /// Directory of the snapshots of save_state().
  std::string directory = "checkpoints";
  /// How many of the newest snapshots to keep; at least 2, so that one can be damaged.
  int keep_last = 2;
  /// save_state() copies the state and returns; a thread writes it while the training goes on.
  /// Call wait_for_saves() before the program ends.
  bool asynchronous_saves = false;
  /// Each rank writes a share of the state, into a directory for each snapshot.
  bool sharded_saves = false;
  /// A folder in which each rank writes which samples it was given, a line a batch, by which
  /// `lockstep audit` proves that each was trained once. Empty: nowhere.
  std::string sample_log_directory = {};
  /// Under `lockstep run --max-restarts=N`, with a prepared optimizer, survivors of a failed rank
  /// keep their processes and repeat the step: see Accelerator. The default random generators are
  /// then seeded at each step from seed, rank and step.
  bool recover = true;
  /// After so many steps each machine has a copy of the state in memory that its launcher keeps,
  /// twice the state's size: for the case that all ranks die at once. 0: none.
  int memory_every = 0;
  /// While recover holds: after so many steps ranks compare their parameters by hashes. A rank that
  /// differs from more than half takes the state of another; without a majority all ranks end with
  /// an Error. 0: only after a recovery, once.
  int check_replicas_every = 0;
  /// Ranks keep parameters and optimizer state once on a machine, as with the option of the same
  /// name of DistributedDataParallel: docs/one-copy.md.
  bool one_copy_per_machine = false;
  /// How ranks meet; not looked at where there is a default group already.
  InitOptions init = {};
  /// Options of prepared models. Their group is the accelerator's.
  DistributedDataParallelOptions ddp = {};
};

}  // namespace lockstep
