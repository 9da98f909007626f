#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/backends/shm/call.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/backends/shm/processors.h"
#include "lockstep/os/memory/life_mark.h"

/// What lies in shared memory beside data. Zeroed memory is the state at the start.
namespace lockstep::shm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

enum class Standing : std::uint32_t { kStarting, kPresent, kLeft, kAborted };

/// Why the group can go on no more, and because of whom.
enum class Reason : std::uint32_t { kNone, kDied, kLeft, kLate, kAborted };

/// A reason and a rank in one word, so that the first who finds out tells everybody at once.
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

/// One rank's, at the start of its arena.
struct Control {
  LifeMark life;
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint32_t> standing;
  /// Written by whoever finds out, read by this rank when it waits.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> verdict;
  /// Rounds below this one: this rank has reduced its part of them; it needs nothing of them more.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> reduced;
  std::atomic<std::uint32_t> released;
  /// Peers that sleep until this rank gets on, and what they sleep on.
  std::atomic<std::uint32_t> waiters;
  std::atomic<std::uint32_t> bell;
  /// Of rank 0, for measuring how far rank 1 is.
  alignas(2 * kLineBytes) std::atomic<std::uint32_t> ping;
  /// Written before the group is connected.
  alignas(kLineBytes) Processors processors;
  /// By round: what named calls are called, for errors.
  alignas(kLineBytes) std::array<CallName, kEntries> names;
};
static_assert(sizeof(Control) <= kControlBytes);

inline constexpr std::size_t kInlineBytes = 32;

/// What a rank lays out for a round: one cache line, so that a small collective costs one transfer.
struct alignas(kLineBytes) Entry {
  std::atomic<std::uint32_t> sequence;  ///< round + 1 once the rest is there
  std::uint32_t released;               ///< the rank's count when it wrote this
  std::uint64_t buffer;                 ///< offset of its tensor in the segment; 0: not there
  Call call;                            ///< in the first round of a collective
  std::byte data[kInlineBytes];
};
static_assert(sizeof(Entry) == kLineBytes);

/// Of messages from one rank to another: `sent` lies with the sender, `received` with the receiver.
struct MessageCounters {
  std::atomic<std::uint64_t> sent;
  alignas(kLineBytes) std::atomic<std::uint64_t> received;
};

/// In front of a chunk of a message.
struct MessageHeader {
  std::uint64_t bytes;  ///< of the whole message
  std::int64_t tag;
};

}  // namespace lockstep::shm
