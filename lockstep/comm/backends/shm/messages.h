#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "lockstep/comm/backends/shm/operation.h"

namespace lockstep::shm {

/// A running message between two ranks; matched with its counterpart by peer and tag, in the order
/// of calls.
struct Message {
  enum class Direction { kSend, kReceive };
  static constexpr int kAnyPeer = -1;

  Direction direction = Direction::kSend;
  /// kAnyPeer for a receive from any rank; then the sender once a message has begun to arrive.
  int peer = 0;
  std::int64_t tag = 0;
  std::byte* data = nullptr;  ///< only read by a send
  std::uint64_t bytes = 0;
  bool complete = false;
  std::uint64_t passed_bytes = 0;
  std::uint64_t order = 0;  ///< of receives: number of the call
};

/// The messages of one rank with its peers. A message passes in chunks through a ring in the
/// sender's arena; it is sent when all of it is in the ring or received. A message that arrives
/// while receives wait only for other tags is stored aside, so that it does not block them.
/// Threads: one at a time.
/// Errors: UsageError if a message and its receive differ in size; CommError if more than
/// kMostAsideBytes are stored aside.
class Messages {
 public:
  static constexpr std::uint64_t kMostAsideBytes = std::uint64_t{1} << 30;

  explicit Messages(Team& team);

  void start_send(Message& message);
  void start_receive(Message& message);
  /// Drops a message that will not continue.
  void forget(const Message& message);

  /// Advances messages as far as peers allow.
  bool advance();

 private:
  struct Aside {
    std::int64_t tag = 0;
    std::uint64_t bytes = 0;
    std::vector<std::byte> data;
    bool complete = false;
  };
  struct Channel {
    std::deque<Message*> sends;
    std::deque<Message*> receives;
    std::uint64_t sent_chunks = 0;
    std::uint64_t received_chunks = 0;
    /// Receive for the arriving message, or it is stored aside.
    Message* into = nullptr;
    bool aside = false;
    std::deque<Aside> put_aside;
    bool populated = false;
  };

  bool advance_send(int peer, Channel& channel);
  bool advance_receive(int peer, Channel& channel);
  bool take_chunk(int peer, Channel& channel);
  Message* find_receive(int peer, Channel& channel, std::int64_t tag);
  void match_put_aside(int peer, Channel& channel);

  Team& team_;
  std::map<int, Channel> channels_;
  std::deque<Message*> from_any_;  ///< receives without a message that has begun to arrive
  std::uint64_t receives_started_ = 0;
  std::uint64_t aside_bytes_ = 0;
};

}  // namespace lockstep::shm
