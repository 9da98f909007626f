#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "lockstep/comm/backends/shm/operation.h"

namespace lockstep::shm {

/// A message from one rank to another under way; matched with its counterpart by peer and tag, in
/// the order of calls.
struct Message {
  enum class Direction { kSend, kReceive };
  static constexpr int kAnyPeer = -1;

  Direction direction = Direction::kSend;
  /// Of a receive kAnyPeer, too: whose message it gets once one has begun to come.
  int peer = 0;
  std::int64_t tag = 0;
  std::byte* data = nullptr;  ///< only read when sent
  std::uint64_t bytes = 0;
  bool complete = false;
  std::uint64_t passed_bytes = 0;
  std::uint64_t order = 0;  ///< of receives, by the order of calls
};

/// The messages of one rank with its peers. A message passes in chunks through a ring of the
/// sender's arena; it is sent when all of it is in the ring or with the receiver. One that arrives
/// while receives wait for other tags only is put aside, so that it does not block them.
/// Threads: one at a time. Errors: UsageError when a message has another size than its receive;
/// CommError when more is put aside than kMostAsideBytes.
class Messages {
 public:
  static constexpr std::uint64_t kMostAsideBytes = std::uint64_t{1} << 30;

  explicit Messages(Team& team);

  void start_send(Message& message);
  void start_receive(Message& message);
  /// Forgets a message of which nothing more will come.
  void forget(const Message& message);

  /// Goes as far as peers allow.
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
    /// The message that is coming in: into a receive, or aside.
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
  std::deque<Message*> from_any_;  ///< receives that no message has begun to come for
  std::uint64_t receives_started_ = 0;
  std::uint64_t aside_bytes_ = 0;
};

}  // namespace lockstep::shm
