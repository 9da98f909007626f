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

/// What carries calls, and their answers, between workers of one machine: Unix sockets, written to
/// by the threads that call and serve, and read by a thread of its own, or by one that waits for an
/// answer. Between machines, to itself, and where device maps say how tensors go, a worker takes
/// LibTorch's agent; and so does what distributed autograd sends of itself.
/// Threads: any. Lifetime: stop() before what it serves goes; answers may come later, to nobody.
class LocalTransport {
 public:
  using Answer = c10::intrusive_ptr<c10::ivalue::Future>;

  /// What comes of it. Threads: the transport's own, which must not be held.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    /// The answer to a request; a message, later or at once.
    virtual Answer serve(torch::distributed::rpc::Message& request,
                         std::vector<c10::Stream> streams) = 0;
    /// To a request that was thrown away.
    virtual Answer refuse_large(std::size_t size_bytes, std::int64_t id) = 0;
    /// A worker's connection has ended.
    virtual void note_lost(int rank) = 0;
    /// What another worker told with tell_of_loss(): before its own connection can end. Threads:
    /// also those that look for an answer; it must not wait.
    virtual void note_told_of_loss(std::int64_t rank) noexcept = 0;
    /// A request timed out of which nothing had been sent, nor will be. Before its answer fails.
    virtual void note_never_sent() noexcept = 0;
  };

  /// `sockets`: by the rank of the other worker. Requests and answers of more than `most_bytes` are
  /// refused.
  LocalTransport(std::unordered_map<int, UniqueFd> sockets, std::size_t most_bytes,
                 Receiver& receiver);
  ~LocalTransport();
  void start();
  /// Closes the connections and waits for what the thread is at. Not on that thread. The first
  /// time.
  void stop() noexcept;

  bool reaches(int rank) const { return links_.contains(rank); }
  /// The answer: a message; or an error as LibTorch's agent gives: of a timeout, of a connection
  /// that has ended. Waits for nobody. Errors: UsageError for tensors that have a problem.
  Answer send(int rank, torch::distributed::rpc::Message& request,
              std::chrono::milliseconds timeout);
  /// Tells all others that this worker has lost one, so that they know whose end was the first if
  /// this worker's follows. Waits for nobody.
  void tell_of_loss(int rank);
  /// Reads what comes from a worker, for a moment at most, until there is this answer, which is
  /// then complete. What else comes is left to the transport's own thread.
  void look_for(const c10::ivalue::Future& answer, int rank);

 private:
  struct Pending {
    int rank = 0;
    Deadline deadline;
    Answer answer;
  };

  /// A frame, and what it completes: nothing, where it is a request or comes too late.
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
  bool has_thread_ = false;    ///< known when start() has started it
  std::atomic<std::int64_t> next_id_{0};
  Mutex mutex_;
  std::unordered_map<std::int64_t, Pending> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Arrival> left_ LOCKSTEP_GUARDED_BY(mutex_);  ///< by looking threads
  Deadline::Clock::time_point wakes_at_ LOCKSTEP_GUARDED_BY(mutex_) =
      Deadline::Clock::time_point::max();
  BackgroundTask thread_{"rpc: read what other workers of this machine send"};
};

}  // namespace lockstep::rpc::inline internal
