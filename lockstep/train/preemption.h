#pragma once

#include <csignal>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Options of Preemption.
struct PreemptionOptions {
  /// Signals that are preemption notices: SIGTERM from SLURM and Kubernetes, SIGUSR1 from `sbatch
  /// --signal=USR1@60`.
  std::vector<int> signals = {SIGTERM, SIGUSR1};
  /// The ranks that end together. Empty: the default group, or this process alone without one.
  ProcessGroup process_group = {};
};

/// Ends a training loop at the same step on all ranks after any of them received a preemption
/// notice, so that they can save a complete snapshot:
///
/// ```cpp
/// Preemption preemption;
/// for (; step < steps; ++step) {
///   if (preemption.requested()) {
///     snapshots.save(*model, optimizer, {.epoch = epoch, .step = step - 1});
///     return kExitPreempted;
///   }
///   …
/// }
/// ```
///
/// `lockstep run` takes this exit code for "preempted, resume later": it ends the job with the same
/// code on all machines, without a restart.
///
/// Threads: call from the training thread; signals may arrive on any thread.
/// Lifetime: while it lives, these signals do not end the program. After a notice they stay
/// ignored, since the program is ending. Keep it until the state is saved. The destructor waits for
/// no rank.
class Preemption {
 public:
  /// Errors: UsageError for a second instance; SystemError.
  explicit Preemption(const PreemptionOptions& options = {});
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  /// Whether all ranks are to save and end; returns the same on all ranks. Call it between two
  /// steps, equally often on all ranks. The exchange runs during the next step, so no rank waits: a
  /// notice that arrives during one step ends the loop after the next.
  /// Errors: as Work::wait.
  bool requested();

  /// Replaces the ranks that end together, after a recovery. Empty: none, until the next call.
  void set_process_group(ProcessGroup group);
  /// Whether this rank has received a notice; does not communicate.
  bool has_notice();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
