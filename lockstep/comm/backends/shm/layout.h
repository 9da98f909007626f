#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

inline constexpr int kMostRanks = 64;
inline constexpr std::uint64_t kLineBytes = 64;
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kControlBytes = kPageBytes;

/// Number of rounds whose entries a rank keeps: how far it may be ahead of the slowest rank.
inline constexpr std::uint32_t kEntries = 64;
/// Number of rounds whose data a rank keeps: two to work on while two are in transfer.
inline constexpr std::uint32_t kSlots = 4;
/// Stays in a core's cache while one rank writes and another reads it.
inline constexpr std::uint64_t kSlotBytes = 256 * 1024;
/// Minimum size of a mapped window of a peer's heap.
inline constexpr std::uint64_t kLeastWindowBytes = 64 * 1024 * 1024;
/// Chunks of the ring for messages between two ranks, and their size.
inline constexpr std::uint64_t kMessageChunks = 4;
inline constexpr std::uint64_t kMessageChunkBytes = 64 * 1024;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// The range of `bytes` bytes that rank `rank` reduces: whole cache lines, as equal as possible.
/// The ranges of all ranks are disjoint and cover everything.
Range share(std::uint64_t bytes, int ranks, int rank);

/// Offsets in the segment that the ranks of a group share. Each rank has an arena and a heap, which
/// it populates itself, so on a NUMA machine its pages are near it. All arenas come first, then all
/// heaps. An arena is
///
///     control | message counters | entries | slots || message data
///
/// The part before || is populated at the start, the rest on use. Offsets are from the start of the
/// segment; arenas and heaps start at multiples of 2 MiB.
class Layout {
 public:
  /// `heap_bytes`: of each rank; a multiple of 2 MiB.
  Layout(int ranks, std::uint64_t heap_bytes);
  /// A layout whose heaps are as large as one rank could ever need on a machine with that much
  /// memory.
  static Layout for_memory(int ranks, std::uint64_t memory_bytes);

  int ranks() const { return ranks_; }
  std::uint64_t heap_bytes() const { return heap_bytes_; }
  std::uint64_t segment_bytes() const {
    return common_bytes() + heap_bytes_ * static_cast<std::uint64_t>(ranks_);
  }
  /// Size of all arenas.
  std::uint64_t common_bytes() const { return arena(ranks_); }
  /// Address space that a rank reserves for the group before it uses peers' heaps.
  std::uint64_t reserved_bytes() const { return common_bytes() + heap_bytes_; }

  std::uint64_t arena(int rank) const;
  std::uint64_t control(int rank) const { return arena(rank); }
  /// Counters of messages that the arena's rank has sent to `peer` and received from it.
  std::uint64_t message_counters(int rank, int peer) const;
  std::uint64_t entry(int rank, std::uint32_t round) const;
  std::uint64_t slot(int rank, std::uint32_t round) const;
  /// Bytes populated at the start, from arena(rank).
  std::uint64_t populated_bytes() const;
  /// A chunk of a message from the arena's rank to `peer`.
  std::uint64_t message_chunk(int rank, int peer, std::uint64_t number) const;
  Range heap(int rank) const;
  /// The rank whose heap contains the offset.
  int heap_owner(std::uint64_t offset) const;
  /// The range of a heap that a peer maps for [offset, offset + bytes): one of few possible ranges,
  /// so that close data is mapped once, and at most four times the needed size or
  /// kLeastWindowBytes.
  Range window(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  int ranks_;
  std::uint64_t heap_bytes_;
};

}  // namespace lockstep::shm
