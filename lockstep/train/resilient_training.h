#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/training_parts.h"

namespace lockstep {

struct ResilientOptions {
  /// Seeds the default generators at each step, together with rank and step. A replayed step draws
  /// the same random numbers, in any process.
  std::uint64_t seed = 0;
  /// How ranks meet.
  InitOptions init = {};
  /// After so many steps each machine has a copy of the state in memory that its launcher keeps,
  /// twice the state's size: for the case that all ranks die at once. 0: none.
  int memory_every = 0;
  /// After so many steps ranks compare their parameters by hashes. One that differs from more than
  /// half, as by a bit that flipped in its memory, is named and takes the state of another; without
  /// a majority all ranks end with an Error. 0: only after a recovery, once.
  int check_replicas_every = 0;
  /// Where snapshots go, for a job that is started again (SnapshotDirectory); empty: nowhere. With
  /// it, SIGTERM and SIGUSR1 to any rank make all save and end.
  std::string directory = {};
  /// Steps from one snapshot to the next; 0: only when preempted.
  int save_interval = 0;
};

enum class TrainingEnd {
  kDone,       ///< all steps have been made
  kPreempted,  ///< preempted, all ranks have saved: end with kExitPreempted
};

/// A training loop that survives the death of its ranks. Under `lockstep run --max-restarts=N`,
/// when a rank fails or machines join and leave, the other processes continue: they roll back the
/// step in flight and form a group with their new ranks, and a replacement receives parameters,
/// optimizer, buffers and the number of steps from one of them. No completed step is lost. On the
/// same number of ranks the parameters end with the same bits as an uninterrupted run.
///
///   auto net = std::make_shared<Net>();
///   torch::optim::Adam optimizer(net->parameters(), 1e-3);
///   ResilientTraining training({.model = net, .optimizer = &optimizer});
///   training.run(steps, [&](const ProcessGroup& group) {
///     auto model = std::make_shared<DistributedDataParallel<Net>>(net, …{.process_group = group});
///     return [&, model](std::int64_t step) {
///       auto [inputs, targets] = batch(step, group.rank(), group.world_size());
///       optimizer.zero_grad();
///       loss(model->forward(inputs), targets).backward();
///       optimizer.step();
///     };
///   });
///
/// A step is one update of the parameters, its exchange of gradients included; what it reads beside
/// the parts follows from its number and the group. Parameters and optimizer are changed at its
/// end, after the last exchange; a rank in which a step failed later than that takes the state of
/// another. Under other launchers, and alone, it is a plain loop, and an error ends it. Threads:
/// the training thread. Lifetime: the parts must outlive it.
class ResilientTraining {
 public:
  using Step = std::function<void(std::int64_t step)>;
  /// Makes what depends on the group, which is another after each recovery; the default group is
  /// the same one. It is destroyed, with all that it holds, when the group ends.
  using MakeStep = std::function<Step(const ProcessGroup& group)>;

  /// Errors: UsageError without a model, where there is a default group already, which would
  /// outlive its ranks, and for a second one of a process that `lockstep run` started.
  explicit ResilientTraining(TrainingParts parts, const ResilientOptions& options = {});
  ~ResilientTraining();
  ResilientTraining(const ResilientTraining&) = delete;
  ResilientTraining& operator=(const ResilientTraining&) = delete;

  /// Collective, once. Returns when all ranks have completed `steps` steps, those of earlier runs
  /// included, or when the job is preempted.
  /// Errors: UsageError for a second call; what steps throw, but for PeerLost, PeerFailed,
  /// TimeoutError and CommError where the launcher can be asked for another generation; Error when
  /// no rank holds a whole state any more, ranks differ without a majority, or the job is preempted
  /// and cannot save.
  TrainingEnd run(std::int64_t steps, const MakeStep& make_step);

  std::int64_t steps_done() const;
  /// The group of the generation that ran last; empty before run().
  const ProcessGroup& process_group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
