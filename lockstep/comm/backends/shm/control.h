#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/backends/shm/call.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/backends/shm/processors.h"
#include "lockstep/os/memory/life_mark.h"

/// Control data in shared memory. Zeroed memory is the initial state.
namespace lockstep::shm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Membership of a rank.
enum class Standing : std::uint32_t { kStarting, kPresent, kLeft, kAborted };

/// Why the group has failed.
enum class Reason : std::uint32_t { kNone, kDied, kLeft, kLate, kAborted };

/// A reason and the rank that caused it, in one word, so that the rank that notices first publishes
/// both atomically.
struct Verdict {
  Reason reason = Reason::kNone;
  int rank = 0;

  std::uint32_t word() const {
    return static_cast<std::uint32_t>(reason) << 16 | static_cast<std::uint32_t>(rank);
  }
  static Verdict of(std::uint32_t word) {
    return {.reason = static_cast<Reason>(word >> 16), .rank = static_cast<int>(word & 0xffff)};
  }
};

/// Control block of one rank, at the start of its arena.
struct Control {
  LifeMark life;
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint32_t> standing;
  /// Written by the rank that notices a failure, read by this rank when it waits.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> verdict;
  /// This rank has reduced its part of all rounds below `reduced`, and needs no data of rounds
  /// below `released`.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> reduced;
  std::atomic<std::uint32_t> released;
  /// Number of peers that sleep until this rank advances, and the futex that they sleep on.
  std::atomic<std::uint32_t> waiters;
  std::atomic<std::uint32_t> bell;
  /// Of rank 0: cache line for measuring the distance to rank 1.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> ping;
  /// Written before the group is connected.
  alignas(kLineBytes) Processors processors;
  /// Names of calls by round, for errors.
  alignas(kLineBytes) std::array<CallName, kEntries> names;
};
static_assert(sizeof(Control) <= kControlBytes);

inline constexpr std::size_t kInlineBytes = 32;

/// What a rank posts for a round: one cache line, so a small collective costs one transfer.
struct alignas(kLineBytes) Entry {
  std::atomic<std::uint32_t> sequence;  ///< round + 1 once the rest is written
  std::uint32_t released;               ///< the rank's `released` when it wrote this
  std::uint64_t buffer;                 ///< offset of its tensor in the segment; 0: elsewhere
  Call call;                            ///< in the first round of a collective
  std::byte data[kInlineBytes];
};
static_assert(sizeof(Entry) == kLineBytes);

/// Chunks of messages from one rank to another: `sent` is in the sender's arena, `received` in the
/// receiver's.
struct MessageCounters {
  std::atomic<std::uint64_t> sent;
  alignas(kLineBytes) std::atomic<std::uint64_t> received;
};

/// Precedes a chunk of a message.
struct MessageHeader {
  std::uint64_t bytes;  ///< of the whole message
  std::int64_t tag;
};

}  // namespace lockstep::shm
