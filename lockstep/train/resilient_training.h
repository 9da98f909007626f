#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/training_parts.h"

namespace lockstep {

/// Options of ResilientTraining; equal on all ranks.
struct ResilientOptions {
  /// Seeds LibTorch's default generators at each step, together with rank and step. A replayed step
  /// draws the same random numbers, in any process.
  std::uint64_t seed = 0;
  /// Options of init_process_group().
  InitOptions init = {};
  /// Steps between copies of the state in memory that the launcher holds, one copy per machine
  /// (twice the state's size). The job resumes from it if all ranks die at once. 0: no copies.
  int memory_every = 0;
  /// Steps between comparisons of the parameters of all ranks, by hash. A rank that differs from
  /// the majority is named in a warning and receives the state of another; without a majority all
  /// ranks end with an Error. 0: compare only once after each recovery.
  int check_replicas_every = 0;
  /// Directory of snapshots (SnapshotDirectory), from which a restarted job resumes. With it,
  /// SIGTERM or SIGUSR1 to any rank makes all ranks save and end. Empty: no snapshots.
  std::string directory = {};
  /// Steps between snapshots; 0: only at a preemption.
  int save_interval = 0;
};

/// Why ResilientTraining::run() returned.
enum class TrainingEnd {
  kDone,       ///< all steps are complete
  kPreempted,  ///< preempted; all ranks have saved: exit with kExitPreempted
};

/// A training loop that survives killed ranks. Under `lockstep run --max-restarts=N`, when a rank
/// fails or machines join or leave, the survivors keep their processes: they roll back the step in
/// flight and form a group with the replacements. A replacement receives parameters, buffers,
/// optimizer state and step number from a survivor. No completed step is lost. On the same number
/// of ranks the parameters end with the same bits as in an uninterrupted run.
///
/// ```cpp
/// auto net = std::make_shared<Net>();
/// torch::optim::Adam optimizer(net->parameters(), 1e-3);
/// ResilientTraining training({.model = net, .optimizer = &optimizer});
/// training.run(steps, [&](const ProcessGroup& group) {
///   auto model = std::make_shared<DistributedDataParallel<Net>>(net, …{.process_group = group});
///   return [&, model](std::int64_t step) {
///     auto [inputs, targets] = batch(step, group.rank(), group.world_size());
///     optimizer.zero_grad();
///     loss(model->forward(inputs), targets).backward();
///     optimizer.step();
///   };
/// });
/// ```
///
/// A step is one update of the parameters, with its gradient exchange. Its other inputs must depend
/// only on the step number and the group. A step changes parameters and optimizer at its end, after
/// the last exchange; a rank whose step fails later than that receives the state of another. Under
/// other launchers, or without one, this is a plain loop, and an error ends it.
///
/// Threads: call from the training thread.
/// Lifetime: the parts must outlive it.
class ResilientTraining {
 public:
  /// Makes one step; `step` counts from 0 over all runs of the job.
  using Step = std::function<void(std::int64_t step)>;
  /// Creates the objects that depend on the group. Called once per generation, since each recovery
  /// forms a new group, which is also the default group. The returned function is destroyed, with
  /// all that it holds, when the group ends.
  using MakeStep = std::function<Step(const ProcessGroup& group)>;

  /// Errors: UsageError without a model, if a default group exists (it would outlive its ranks),
  /// and for a second instance in a process that `lockstep run` started.
  explicit ResilientTraining(TrainingParts parts, const ResilientOptions& options = {});
  ~ResilientTraining();
  ResilientTraining(const ResilientTraining&) = delete;
  ResilientTraining& operator=(const ResilientTraining&) = delete;

  /// Trains until all ranks have completed `steps` steps, those of earlier runs included, or until
  /// the job is preempted. Collective; call it once.
  /// Errors: UsageError for a second call. What steps throw, except PeerLost, PeerFailed,
  /// TimeoutError and CommError if the launcher can start another generation. Error when no rank
  /// holds a complete state, when ranks differ without a majority, or when a preempted job cannot
  /// save.
  TrainingEnd run(std::int64_t steps, const MakeStep& make_step);

  /// Completed steps, those of earlier runs included.
  std::int64_t steps_done() const;
  /// The group of the newest generation; empty before run().
  const ProcessGroup& process_group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
