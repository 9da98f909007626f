#pragma once

#include <cstdint>
#include <string>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel_options.h"
#include "lockstep/fully_shard/sharded_module.h"

namespace lockstep {

/// What to do with a step whose averaged gradients are not all finite. The check costs almost
/// nothing if the group shares memory, else a pass over the gradients.
enum class NonFinite {
  kIgnore,  ///< The optimizer uses them.
  kReport,  ///< The same, and a warning names ranks, step and parameters.
  kSkip,    ///< A warning, and the optimizer skips the step on all ranks.
  kStop,    ///< An Error on all ranks, with the parameters unchanged.
};

/// How several ranks train a model.
enum class Strategy {
  kDdp,         ///< Each rank holds the model: DistributedDataParallel.
  kFullyShard,  ///< Each holds a shard of it and of the optimizer's state: docs/fully-shard.md.
};

/// Options of Accelerator; names are those of accelerate.Accelerator (docs/accelerator.md). They
/// must be equal on all ranks.
struct AcceleratorOptions {
  Strategy strategy = Strategy::kDdp;
  /// The dtype in which forward of prepared models computes, where Autocast allows it.
  Precision precision = Precision::kFloat32;
  /// Number of batches per optimizer step, each in its own accumulate().
  int gradient_accumulation_steps = 1;
  /// The batch size of a prepared loader is that of all ranks together. False: it is that of each
  /// rank, so more ranks make larger global batches.
  bool split_batches = false;
  /// Number of shards per step, on any number of ranks: a training run then ends with the same bits
  /// on any number of ranks (docs/guides/same-bits.md). Each batch of the first prepared loader is
  /// a shard; a rank computes its shards one after the other. Call backward() once for each;
  /// optimizers and schedulers step after a rank's last shard. Ranks beyond this number have no
  /// work. Constant for the whole training run. 0: off; one batch per rank and step.
  int logical_shards = 0;
  /// With logical_shards: operator threads per rank, in place of OMP_NUM_THREADS. Equal on all
  /// ranks, since it decides how operators divide their sums.
  int compute_threads = 1;
  /// With logical_shards: ranks whose kernels may round differently (other instructions, LibTorch
  /// version or settings) cause a warning instead of an error. Equal on all ranks.
  bool allow_kernel_differences = false;
  /// Seeds the order of samples and, with logical_shards, the random numbers of each shard.
  std::uint64_t seed = 0;
  /// What to do with gradients that are not finite.
  NonFinite non_finite = NonFinite::kIgnore;
  /// Directory of the snapshots of save_state().
  std::string directory = "checkpoints";
  /// Number of newest snapshots to keep; at least 2, so that one may be damaged.
  int keep_last = 2;
  /// save_state() copies the state and returns; a thread writes the copy while training continues.
  /// Call wait_for_saves() before the program ends.
  bool asynchronous_saves = false;
  /// Each rank writes a shard of the state; a snapshot is a directory.
  bool sharded_saves = false;
  /// Directory in which each rank logs its samples, one line per batch. `lockstep audit` proves
  /// from it that each sample was trained once. Empty: no log.
  std::string sample_log_directory = {};
  /// Under `lockstep run --max-restarts=N`, with a prepared optimizer: survivors of a failed rank
  /// keep their processes and replay the step (see Accelerator). The default random generators are
  /// then seeded at each step from seed, rank and step.
  bool recover = true;
  /// Steps between copies of the state in memory that the launcher holds, one copy per machine
  /// (twice the state's size). The job resumes from it if all ranks die at once. 0: no copies.
  int memory_every = 0;
  /// With recover: steps between comparisons of the parameters of all ranks, by hash. A rank that
  /// differs from the majority receives the state of another; without a majority all ranks end with
  /// an Error. 0: compare only once after each recovery.
  int check_replicas_every = 0;
  /// Keep one copy of parameters and optimizer state per machine, as the same option of
  /// DistributedDataParallel (docs/one-copy.md).
  bool one_copy_per_machine = false;
  /// Options of init_process_group(); ignored if a default group exists.
  InitOptions init = {};
  /// Options of prepared models; their process_group is set to the accelerator's.
  DistributedDataParallelOptions ddp = {};
  /// Those with Strategy::kFullyShard. The accelerator makes the groups: process_group and
  /// replicate_group must be empty.
  FullyShardOptions fully_shard = {};
};

}  // namespace lockstep
