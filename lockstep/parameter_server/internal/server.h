#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/parameter_server/internal/shard.h"
#include "lockstep/parameter_server/internal/trainer_watch.h"

namespace lockstep::parameter_server::inline internal {

/// When updates are made, and which values trainers may read.
struct UpdateRules {
  /// Unset: synchronous. An update uses the gradients of all trainers, in their order, when all
  /// trainers have requested its result, which they do after every server has their gradients.
  /// Set: asynchronous. Each trainer's gradients are an update at once. A trainer more than this
  /// number of steps ahead of the slowest waits for it.
  /// Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
  /// server", NIPS 2013.
  std::optional<std::int64_t> staleness = std::nullopt;
  /// Called after each update, before anything else happens. `clock`: steps of the slowest trainer.
  std::function<void(std::int64_t clock)> after_update = [](std::int64_t) {};
};

/// Receives trainers' gradients and replies with values: a server's part for one set of trainers.
/// Threads: any.
/// Lifetime: the shard must outlive it.
class ParameterServer {
 public:
  using Later = c10::intrusive_ptr<c10::ivalue::Future>;

  /// `done`: steps that each trainer has made before, for asynchronous updates.
  ParameterServer(Shard& shard, UpdateRules rules, std::vector<std::int64_t> done);

  /// Receives a trainer's gradients of a step.
  /// Errors: UsageError for gradients that do not fit the shard.
  void push(int trainer, std::int64_t step, Gradients gradients);
  /// The values, [elements of the slice], when a trainer that has made `step` steps may read them.
  Later pull(int trainer, std::int64_t step);
  /// Copies rows of a table, for a trainer.
  at::Tensor rows(int trainer, std::size_t table, const at::Tensor& rows);
  /// Completes when all trainers have called it.
  Later finish(int trainer);

  /// Whether all trainers have called finish().
  bool all_finished() const;
  /// Activity of each trainer, to detect hung ones. A call is counted when it arrives, even if it
  /// waits for an update.
  std::vector<TrainerActivity> activity() const;

  /// Drops replies for which no caller waits any more, with what would send them.
  void forget_callers();
  /// Whether all gradients of the next synchronous update have arrived.
  bool has_next() const;
  /// Makes that update.
  void make_next();
  /// Throws the error that interrupted an update. The shard is then unusable, and no call is
  /// answered.
  void check() const;
  /// Steps of each trainer.
  std::vector<std::int64_t> done() const;

 private:
  struct Trainer {
    std::int64_t done = 0;
    std::optional<Gradients> pushed{};
    /// Its pull waits for the result of this number of steps.
    std::optional<std::int64_t> wanted{};
    Later values{};
    bool has_finished = false;
  };

  void note_sign(int trainer);
  void check_trainer(int trainer) const;
  Trainer& find(int trainer) LOCKSTEP_REQUIRES(mutex_);
  std::int64_t clock() const LOCKSTEP_REQUIRES(mutex_);
  bool all_pushed() const LOCKSTEP_REQUIRES(mutex_);
  void update_with_all() LOCKSTEP_REQUIRES(mutex_);
  void update(std::vector<Gradients> gradients) LOCKSTEP_REQUIRES(mutex_);
  std::vector<Later> take_waiting() LOCKSTEP_REQUIRES(mutex_);
  bool may_read(const Trainer& trainer) const LOCKSTEP_REQUIRES(mutex_);
  /// Replies that are due; complete them without the lock.
  std::vector<Later> take_due() LOCKSTEP_REQUIRES(mutex_);
  void answer(const std::vector<Later>& due);
  std::exception_ptr find_error() const;
  at::Tensor values_now() const;

  Shard& shard_;
  const UpdateRules rules_;
  mutable Mutex mutex_;
  std::vector<Trainer> trainers_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::atomic<std::int64_t>> signs_;  ///< by trainer; not guarded
  Later all_finished_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr broken_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::parameter_server::inline internal
