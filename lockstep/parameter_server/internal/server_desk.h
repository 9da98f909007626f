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

/// When updates are made, and what trainers may see of them.
struct UpdateRules {
  /// Unset: synchronous. An update is made by the gradients of all trainers, in their order, once
  /// all of them have asked for its outcome, which they do when every server has their gradients.
  /// Else each trainer's gradients are an update of their own at once, and a trainer that is more
  /// than so many steps before the slowest waits for it (Ho et al., "More effective distributed ML
  /// via a stale synchronous parallel parameter server", NIPS 2013).
  std::optional<std::int64_t> staleness = std::nullopt;
  /// Called after each update, while nothing else happens. `clock`: the steps of the trainer that
  /// is furthest behind.
  std::function<void(std::int64_t clock)> after_update = [](std::int64_t) {};
};

/// Where trainers hand in gradients and ask for values: what a server does for one group of them.
/// Threads: any. Lifetime: the shard must outlive it.
class ServerDesk {
 public:
  using Later = c10::intrusive_ptr<c10::ivalue::Future>;

  /// `done`: the steps that each trainer has made before, as asynchronous rules count them.
  ServerDesk(Shard& shard, UpdateRules rules, std::vector<std::int64_t> done);

  /// A trainer's gradients of a step. Errors: UsageError for what does not fit.
  void push(int trainer, std::int64_t step, Gradients gradients);
  /// The values [elements of the slice] once a trainer that has made `step` steps may have them.
  Later pull(int trainer, std::int64_t step);
  /// Copies of rows of a table, for a trainer.
  at::Tensor rows(int trainer, std::size_t table, const at::Tensor& rows);
  /// Answered when all trainers have asked.
  Later finish(int trainer);

  /// Whether all trainers have made their steps.
  bool all_finished() const;
  /// Of each trainer, to notice those from which nothing comes any more. Calls count when they
  /// come, also while an update keeps them waiting.
  std::vector<Heard> heard() const;

  /// Drops the answers that nobody waits for any more, and with them what would send them.
  void forget_callers();
  /// Whether the gradients of the next synchronous update are all there.
  bool has_next() const;
  /// Makes it.
  void make_next();
  /// Throws what ended an update half-way: the shard is of no use then, and no call is answered.
  void check() const;
  /// The steps of each trainer.
  std::vector<std::int64_t> done() const;

 private:
  struct Trainer {
    std::int64_t done = 0;
    std::optional<Gradients> pushed{};
    std::optional<std::int64_t> wanted{};  ///< Its pull waits for so many steps' outcome.
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
  /// The answers that became due; to be given without the lock.
  std::vector<Later> take_due() LOCKSTEP_REQUIRES(mutex_);
  void answer(const std::vector<Later>& due);
  std::exception_ptr find_error() const;
  at::Tensor values_now() const;

  Shard& shard_;
  const UpdateRules rules_;
  mutable Mutex mutex_;
  std::vector<Trainer> trainers_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::atomic<std::int64_t>> signs_;  ///< of each trainer; without the lock
  Later all_finished_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr broken_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::parameter_server::inline internal
