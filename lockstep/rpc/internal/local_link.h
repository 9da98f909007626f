#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/rpc/internal/local_frame.h"

namespace lockstep::rpc::inline internal {

/// Connection to one other worker of this machine. It never waits for the other worker: bytes that
/// the socket does not accept at once are sent later by the thread that polls `poll_set`.
/// Threads: any may send and receive; the polling thread does the rest.
class LocalLink {
 public:
  /// Adds the socket to an epoll set, as number `rank`.
  LocalLink(int rank, UniqueFd socket, int poll_set, std::size_t most_bytes);

  int rank() const { return rank_; }
  /// Blocks in which tensors are passed to the other worker.
  LentBlocks& blocks() { return blocks_; }
  /// False if the connection has been closed.
  bool send(OutgoingFrame frame);
  /// For a request whose reply is no longer awaited: removes it if its sending has not begun.
  /// Returns whether it was removed.
  bool forget(std::int64_t id);
  /// Sends queued bytes, when the socket accepts more.
  void go_on();

  enum class Received { kNothing, kSome, kEnd };
  /// What to do while another thread reads.
  enum class Turn { kWaitFor, kLeave };
  /// Reads available bytes and passes each complete frame to `take`, before another thread can read
  /// what follows. `take` must neither wait nor use the link. After an invalid frame it logs the
  /// reason, and reads nothing more.
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
