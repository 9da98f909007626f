#pragma once

#include <csignal>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct PreemptionOptions {
  /// Preemption notices: SIGTERM from SLURM and Kubernetes, SIGUSR1 from
  /// `sbatch --signal=USR1@60`.
  std::vector<int> signals = {SIGTERM, SIGUSR1};
  /// The ranks that end together. Empty: the default group, else this one process.
  ProcessGroup process_group = {};
};

/// Ends a training loop at the same step on all ranks once any of them has got a signal, so that
/// what they save then is whole and no step is lost:
///
///   Preemption preemption;
///   for (; step < steps; ++step) {
///     if (preemption.requested()) {
///       snapshots.save(*model, optimizer, {.epoch = epoch, .step = step - 1});
///       return kExitPreempted;
///     }
///     …
///   }
///
/// `lockstep run` takes that exit code for "may be started again, and goes on": it ends the job
/// with it on all machines, without a restart. Threads: the training thread; signals may come to
/// any. Lifetime: while it lives the signals end the program no more, and where one came, not later
/// either: a second one finds the program on its way out. Keep it until the state is saved. The
/// destructor waits for nobody.
class Preemption {
 public:
  /// Errors: UsageError for a second one, SystemError.
  explicit Preemption(const PreemptionOptions& options = {});
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  /// Between two steps, on all ranks as often: whether all are to save and end, in the same call on
  /// all. The ranks' answers travel while a step runs, so that nobody waits for them: a signal ends
  /// the loop before the step after the next. Errors: as Work::wait.
  bool requested();

  /// The ranks that end together are these from now on; empty: none, until there are others.
  void set_process_group(ProcessGroup group);
  /// Whether this rank has received a notice; asks no other rank.
  bool is_told();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
