#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/gloo/connections.h"
#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::gloo_backend {

/// Decides whether a message that is incomplete is lost with its connection.
/// Threads: one at a time.
class LostMessage {
 public:
  LostMessage(Connections& connections, int peer, Connections::Clock::time_point begun)
      : connections_(connections), peer_(peer), begun_(begun) {}

  /// After a wait that did not complete the message: its error, or null. A wait may miss that the
  /// message is complete if it was interrupted before it began; two in a row do not.
  std::exception_ptr error_after_wait() {
    const bool was_lost = std::exchange(is_lost_, connections_.are_lost(peer_, begun_));
    return was_lost && is_lost_ ? connections_.error(peer_) : nullptr;
  }

 private:
  Connections& connections_;
  const int peer_;
  const Connections::Clock::time_point begun_;
  bool is_lost_ = false;
};

/// A message of Gloo. Gloo can only wait for it, and its timeout fails the whole group. So
/// WaitLimit interrupts a shorter wait, and a thread waits for the message from the first call of
/// isCompleted() on. Both look at the connections at intervals.
/// Threads: any.
/// Lifetime: the thread keeps the backend and the message; it ends at the message's deadline at the
/// latest.
/// Errors: wait() throws Gloo's error, or that of Connections, the same each time.
class MessageWork final : public c10d::Work {
 public:
  /// `threads`: number of threads that wait for messages of the backend. `peer`: as in
  /// Connections.
  MessageWork(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Work> work,
              std::shared_ptr<std::atomic<int>> threads, std::shared_ptr<Connections> connections,
              int peer, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  /// Waits until the message's own deadline if `timeout` is c10d's kNoTimeout.
  /// Errors: WaitExpired before that deadline.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;

 private:
  struct Outcome {
    Mutex mutex;
    std::condition_variable changed;
    bool is_awaited LOCKSTEP_GUARDED_BY(mutex) = false;  ///< a thread waits in Gloo
    bool is_aborted LOCKSTEP_GUARDED_BY(mutex) = false;
    bool ended LOCKSTEP_GUARDED_BY(mutex) = false;
    std::exception_ptr error LOCKSTEP_GUARDED_BY(mutex) = {};
  };

  void start_thread() LOCKSTEP_REQUIRES(outcome_->mutex);
  /// Waits in Gloo, without the outcome's lock.
  void wait_here(Deadline until) LOCKSTEP_REQUIRES(outcome_->mutex);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<std::atomic<int>> threads_;
  const std::shared_ptr<Connections> connections_;
  const int peer_;
  const Connections::Clock::time_point begun_ = Connections::Clock::now();
  LostMessage lost_;  ///< by the one that waits in Gloo
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  const Deadline deadline_;
};

/// While it lives, the wait for a message of Gloo returns false at `until`; Gloo's own timeout
/// would fail the group. At most one wait of the message at a time.
/// Threads: the one that waits; one thread of the process interrupts all waits. If that cannot be
/// created, the wait has no limit.
class WaitLimit {
 public:
  WaitLimit(c10d::Work& work, Deadline until);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  c10d::Work& work() const { return work_; }
  Deadline::Clock::time_point instant() const { return instant_; }

 private:
  c10d::Work& work_;
  const Deadline::Clock::time_point instant_;
};

}  // namespace lockstep::gloo_backend
