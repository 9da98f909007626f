#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

inline constexpr int kMostRanks = 64;
inline constexpr std::uint64_t kLineBytes = 64;
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kControlBytes = kPageBytes;

/// Rounds whose entries a rank keeps: how far it may run ahead of the slowest.
inline constexpr std::uint32_t kEntries = 64;
/// Rounds whose data a rank keeps: two to work on while two are on their way.
inline constexpr std::uint32_t kSlots = 4;
/// Stays in the cache of a core while it is written by one and read by another.
inline constexpr std::uint64_t kSlotBytes = 256 * 1024;
/// Of a peer's heap.
inline constexpr std::uint64_t kLeastWindowBytes = 64 * 1024 * 1024;
/// Of a message between two ranks.
inline constexpr std::uint64_t kMessageChunks = 4;
inline constexpr std::uint64_t kMessageChunkBytes = 64 * 1024;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// The part of `bytes` bytes that rank `rank` reduces: whole cache lines, as equal as these allow.
/// The parts of all ranks are disjoint and cover everything.
Range share(std::uint64_t bytes, int ranks, int rank);

/// Where everything lies in the segment that the ranks of a group share. Each rank has an arena and
/// a heap of its own, which it populates itself, so that on a machine with several memories its
/// pages are near it. All arenas come first, then all heaps; an arena is
///
///   control | message counters | entries | slots || message data
///
/// The part before the || is populated at the start, the rest where it is used. Offsets are from
/// the start of the segment; arenas and heaps start at multiples of 2 MiB.
class Layout {
 public:
  /// `heap_bytes`: of each rank; a multiple of 2 MiB.
  Layout(int ranks, std::uint64_t heap_bytes);
  /// With heaps for as much as one rank could ever take on a machine with so much memory.
  static Layout for_memory(int ranks, std::uint64_t memory_bytes);

  int ranks() const { return ranks_; }
  std::uint64_t heap_bytes() const { return heap_bytes_; }
  std::uint64_t segment_bytes() const {
    return common_bytes() + heap_bytes_ * static_cast<std::uint64_t>(ranks_);
  }
  /// All arenas.
  std::uint64_t common_bytes() const { return arena(ranks_); }
  /// The address space that a rank gives the group before it uses peers' heaps.
  std::uint64_t reserved_bytes() const { return common_bytes() + heap_bytes_; }

  std::uint64_t arena(int rank) const;
  std::uint64_t control(int rank) const { return arena(rank); }
  /// Counters of messages that the arena's rank has sent to `peer`, and received from it.
  std::uint64_t message_counters(int rank, int peer) const;
  std::uint64_t entry(int rank, std::uint32_t round) const;
  std::uint64_t slot(int rank, std::uint32_t round) const;
  /// What is populated at the start: so many bytes from arena(rank).
  std::uint64_t populated_bytes() const;
  /// One chunk on its way from the arena's rank to `peer`.
  std::uint64_t message_chunk(int rank, int peer, std::uint64_t number) const;
  Range heap(int rank) const;
  /// Whose heap the offset lies in.
  int heap_owner(std::uint64_t offset) const;
  /// The part of its heap in which a peer maps [offset, offset + bytes): one of few, so that what
  /// lies near each other is mapped once, and no more than four times what it is needed for, or
  /// kLeastWindowBytes.
  Range window(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  int ranks_;
  std::uint64_t heap_bytes_;
};

}  // namespace lockstep::shm
