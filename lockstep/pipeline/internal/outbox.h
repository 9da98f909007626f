#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/work.h"
#include "lockstep/os/process/background_task.h"

namespace lockstep::inline internal {

/// Holds messages until they are sent. Over shared memory a message progresses only when its sender
/// polls it; a thread does that, so that the sender can compute.
/// Threads: one calls it.
/// Lifetime: the destructor does not wait; messages that are not sent by then may be lost.
class Outbox {
 public:
  struct Failure {
    std::exception_ptr error;
    std::string operation;
    int peer = 0;
  };

  /// `needs_looks`: messages progress only by polling.
  explicit Outbox(bool needs_looks) : needs_looks_(needs_looks) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  struct Message {
    Work work;
    std::string operation;  ///< for error messages
    int peer = 0;
    /// Position in the peer's plan where it is received.
    int taken_at = std::numeric_limits<int>::max();
  };

  void add(Message message);
  /// Releases messages that a peer has received, by its position in its plan.
  void forget_taken(int peer, int position);
  /// Returns when all messages are sent or have failed.
  void finish();
  /// The first failure since the last call.
  std::optional<Failure> take_failure();

 private:
  void look(const std::stop_token& stop);
  void drop_completed() LOCKSTEP_REQUIRES(mutex_);
  void complete(const Message& message) LOCKSTEP_REQUIRES(mutex_);

  const bool needs_looks_;
  Mutex mutex_;
  std::condition_variable_any stopped_;  // never notified: the stop token wakes who waits
  std::deque<Message> messages_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_looking_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Failure> failure_ LOCKSTEP_GUARDED_BY(mutex_);
  BackgroundTask task_{"send to another stage of a pipeline"};
};

}  // namespace lockstep::inline internal
