#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/message.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/background_task.h"
#include "lockstep/rpc/internal/local_link.h"

namespace lockstep::rpc::inline internal {

/// Transports calls and replies between workers of one machine over Unix sockets. Calling and
/// serving threads write; a thread of the transport, or one that waits for a reply, reads.
/// LibTorch's agent transports messages between machines, to itself, with device maps, and those of
/// distributed autograd.
/// Threads: any.
/// Lifetime: call stop() before the receiver is destroyed; later replies are discarded.
class LocalTransport {
 public:
  using Answer = c10::intrusive_ptr<c10::ivalue::Future>;

  /// Handles received messages.
  /// Threads: the transport's own, which must not be blocked.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    /// Serves a request; returns its reply, a message, at once or later.
    virtual Answer serve(torch::distributed::rpc::Message& request,
                         std::vector<c10::Stream> streams) = 0;
    /// The reply to a request that was too large and has been discarded.
    virtual Answer refuse_large(std::size_t size_bytes, std::int64_t id) = 0;
    /// The connection of a worker has ended.
    virtual void note_lost(int rank) = 0;
    /// Another worker called notify_loss(); arrives before its own connection can end.
    /// Threads: also those that wait for a reply; it must not wait.
    virtual void note_told_of_loss(std::int64_t rank) noexcept = 0;
    /// A request timed out before anything of it was sent; called before its reply fails.
    virtual void note_never_sent() noexcept = 0;
  };

  /// `sockets`: by rank of the other worker.
  /// `most_bytes`: larger requests and replies are refused.
  LocalTransport(std::unordered_map<int, UniqueFd> sockets, std::size_t most_bytes,
                 Receiver& receiver);
  ~LocalTransport();
  void start();
  /// Closes the connections and waits for the transport's thread. Do not call it on that thread;
  /// only the first call has an effect.
  void stop() noexcept;

  bool reaches(int rank) const { return links_.contains(rank); }
  /// Sends a request. Returns the future reply: a message, or an error like those of LibTorch's
  /// agent, for a timeout or a connection that has ended. Does not wait.
  /// Errors: UsageError for tensors that have a problem.
  Answer send(int rank, torch::distributed::rpc::Message& request,
              std::chrono::milliseconds timeout);
  /// Notifies the other workers that this worker has lost one, so that they know which failed first
  /// if this worker's end follows. Does not wait.
  void notify_loss(int rank);
  /// Reads from a worker, for a moment at most, until this reply is complete. Other messages are
  /// left to the transport's thread.
  void poll_for(const c10::ivalue::Future& answer, int rank);

 private:
  struct Pending {
    int rank = 0;
    Deadline deadline;
    Answer answer;
  };

  /// A frame, and the reply that it completes: none for a request, or if it is late.
  struct Arrival {
    int rank = 0;
    Frame frame;
    Answer answer;
  };

  void run(const std::stop_token& stop);
  int milliseconds_to_wait();
  void receive(LocalLink& link);
  Arrival arrival_of(int rank, Frame frame);
  std::vector<Arrival> take_those_left();
  void handle(Arrival arrival) noexcept;
  Answer serve(Frame frame);
  void serve_and_answer(LocalLink& link, Frame frame);
  void complete(Arrival arrival);
  void lose(LocalLink& link);
  void end_overdue();
  void wake() noexcept;

  const std::size_t most_bytes_;
  Receiver& receiver_;
  UniqueFd poll_set_;
  UniqueFd wake_;
  std::unordered_map<int, std::shared_ptr<LocalLink>> links_;
  std::atomic<bool> stopped_{false};
  std::shared_mutex looking_;  ///< held by looking threads until it has stopped
  bool has_thread_ = false;    ///< set when start() has started it
  std::atomic<std::int64_t> next_id_{0};
  Mutex mutex_;
  std::unordered_map<std::int64_t, Pending> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Arrival> left_ LOCKSTEP_GUARDED_BY(mutex_);  ///< by waiting threads
  Deadline::Clock::time_point wakes_at_ LOCKSTEP_GUARDED_BY(mutex_) =
      Deadline::Clock::time_point::max();
  BackgroundTask thread_{"rpc: read what other workers of this machine send"};
};

}  // namespace lockstep::rpc::inline internal
