#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/rpc/internal/local_frame.h"

namespace lockstep::rpc::inline internal {

/// The connection to one other worker of this machine. Nothing in it waits for the other: what the
/// socket does not take at once is sent when it can, by whoever polls `poll_set`. Threads: any may
/// send and receive; one, that which polls, does the rest.
class LocalLink {
 public:
  /// Adds the socket to an epoll set, under the number `rank`.
  LocalLink(int rank, UniqueFd socket, int poll_set, std::size_t most_bytes);

  int rank() const { return rank_; }
  /// In which tensors are passed to the other worker.
  LentBlocks& blocks() { return blocks_; }
  /// False where the connection has been closed.
  bool send(OutgoingFrame frame);
  /// Of a request to which no answer is awaited any more: whether it will not be sent, as that has
  /// not begun.
  bool forget(std::int64_t id);
  /// Sends what waits; the socket takes more.
  void go_on();

  enum class Received { kNothing, kSome, kEnd };
  /// Reads what has come and gives away each frame that is whole, before another thread can read
  /// what follows; `take` must not wait, and may not use the link. Where it is no frame the log
  /// says why, and nothing more is read. `turn`: what to do where another thread reads.
  enum class Turn { kWaitFor, kLeave };
  Received receive(Turn turn, const std::function<void(Frame)>& take);
  void close();

 private:
  void enqueue(OutgoingFrame frame) LOCKSTEP_REQUIRES(mutex_);
  void watch(bool for_room) LOCKSTEP_REQUIRES(mutex_);
  bool write(OutgoingFrame& frame) LOCKSTEP_REQUIRES(mutex_);

  const int rank_;
  const int poll_set_;
  LentBlocks blocks_;
  Mutex reading_;  // before mutex_
  FrameReader reader_ LOCKSTEP_GUARDED_BY(reading_);
  bool is_broken_ LOCKSTEP_GUARDED_BY(reading_) = false;
  Mutex mutex_;
  UniqueFd socket_;  // changed under both, read under either
  std::deque<OutgoingFrame> queue_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::inline internal
