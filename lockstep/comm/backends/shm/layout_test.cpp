#include "lockstep/comm/backends/shm/layout.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/comm/backends/shm/control.h"

namespace lockstep::shm {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;

TEST(Share, CoversEverythingInWholeLinesOfEqualNumber) {
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64}, std::uint64_t{65},
        std::uint64_t{4096}, std::uint64_t{1'000'003}, std::uint64_t{46'800'000}, kHuge - 1, kHuge,
        kHuge + 1, kHuge + 7919}) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes, " << ranks << " ranks");
      const std::uint64_t lines = (bytes + kLineBytes - 1) / kLineBytes;
      const std::uint64_t fewest = lines / static_cast<std::uint64_t>(ranks);
      std::uint64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range part = share(bytes, ranks, rank);
        ASSERT_EQ(part.begin, end);
        if (part.bytes > 0) {
          ASSERT_EQ(part.begin % kLineBytes, 0U);
        }
        const std::uint64_t part_lines = (part.bytes + kLineBytes - 1) / kLineBytes;
        ASSERT_GE(part_lines, fewest);
        ASSERT_LE(part_lines, fewest + 1);
        end = part.begin + part.bytes;
      }
      ASSERT_EQ(end, bytes);
    }
  }
}

constexpr std::uint64_t kHugePageBytes = 2 * 1024 * 1024;

// Everything that lies in one arena.
std::vector<Range> ranges_of(const Layout& layout, int rank) {
  std::vector<Range> ranges{{.begin = layout.control(rank), .bytes = sizeof(Control)}};
  for (int peer = 0; peer < layout.ranks(); ++peer) {
    ranges.push_back(
        {.begin = layout.message_counters(rank, peer), .bytes = sizeof(MessageCounters)});
    for (std::uint64_t chunk = 0; chunk < kMessageChunks; ++chunk) {
      ranges.push_back({.begin = layout.message_chunk(rank, peer, chunk),
                        .bytes = kLineBytes + kMessageChunkBytes});
    }
  }
  for (std::uint32_t round = 0; round < kEntries; ++round) {
    ranges.push_back({.begin = layout.entry(rank, round), .bytes = sizeof(Entry)});
  }
  for (std::uint32_t round = 0; round < kSlots; ++round) {
    ranges.push_back({.begin = layout.slot(rank, round), .bytes = kSlotBytes});
  }
  return ranges;
}

TEST(Layout, NothingOverlapsAndEverythingIsInItsArena) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const std::uint64_t heap_bytes : {kHugePageBytes, kHuge}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, heaps of " << heap_bytes);
      const Layout layout(ranks, heap_bytes);
      std::uint64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        auto ranges = ranges_of(layout, rank);
        std::sort(ranges.begin(), ranges.end(),
                  [](const Range& a, const Range& b) { return a.begin < b.begin; });
        ASSERT_EQ(layout.arena(rank) % kHugePageBytes, 0U);
        ASSERT_EQ(ranges.front().begin, layout.arena(rank));
        for (const Range& range : ranges) {
          ASSERT_GE(range.begin, end);
          ASSERT_EQ(range.begin % kLineBytes, 0U);
          end = range.begin + range.bytes;
        }
        ASSERT_LE(end, layout.arena(rank + 1));
      }
      ASSERT_LE(end, layout.common_bytes());
      end = layout.common_bytes();
      for (int rank = 0; rank < ranks; ++rank) {
        const Range heap = layout.heap(rank);
        ASSERT_EQ(heap.begin, end);
        ASSERT_EQ(heap.begin % kHugePageBytes, 0U);
        ASSERT_EQ(layout.heap_owner(heap.begin), rank);
        end = heap.begin + heap.bytes;
        ASSERT_EQ(layout.heap_owner(end - 1), rank);
      }
      ASSERT_EQ(end, layout.segment_bytes());
    }
  }
}

// Of a process: what x86-64 gives it without being asked for more.
constexpr std::uint64_t kAddressSpace = std::uint64_t{1} << 47;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(Layout, DozensOfGroupsFitTheAddressSpaceOnAnyMachine) {
  for (const std::uint64_t memory : {1 * kGiB, 64 * kGiB, 256 * kGiB, 2048 * kGiB, 24'576 * kGiB}) {
    for (const int ranks : {1, 2, 8, 32, kMostRanks}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << memory / kGiB << " GiB");
      const Layout layout = Layout::for_memory(ranks, memory);
      EXPECT_GE(layout.heap(ranks - 1).bytes, std::min(memory, 2048 * kGiB));
      // Half of it is left for windows and for all else.
      EXPECT_GE(kAddressSpace / 2 / layout.reserved_bytes(), 30U);
    }
  }
}

TEST(Layout, AWindowHoldsWhatItIsForInItsHeapAndLittleMore) {
  for (const std::uint64_t heap_bytes : {kHugePageBytes, 50 * kHugePageBytes, 256 * kGiB}) {
    const Layout layout(3, heap_bytes);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Range heap = layout.heap(rank);
      for (const std::uint64_t bytes :
           {std::uint64_t{1}, kPageBytes, kHugePageBytes, kLeastWindowBytes / 2,
            kLeastWindowBytes / 2 + 1, 7919 * kPageBytes, kGiB, heap_bytes / 2, heap_bytes}) {
        if (bytes > heap_bytes) continue;
        const std::uint64_t last = heap_bytes - bytes;
        for (const std::uint64_t begin : {std::uint64_t{0}, last / 3, last / 2 + 1, last}) {
          if (begin > last) continue;
          const Range window = layout.window(heap.begin + begin, bytes);
          ASSERT_LE(window.begin, heap.begin + begin);
          ASSERT_GE(window.begin + window.bytes, heap.begin + begin + bytes);
          ASSERT_GE(window.begin, heap.begin);
          ASSERT_LE(window.begin + window.bytes, heap.begin + heap.bytes);
          ASSERT_EQ(window.begin % kPageBytes, 0U);
          ASSERT_LE(window.bytes, std::max(4 * bytes, kLeastWindowBytes));
        }
      }
    }
  }
}

TEST(Layout, WhatLiesInOnePlaceHasOneWindow) {
  const Layout layout(2, kGiB);
  const std::uint64_t begin = layout.heap(1).begin;
  const Range first = layout.window(begin, kPageBytes);
  for (std::uint64_t offset = 0; offset < kLeastWindowBytes / 2; offset += kPageBytes) {
    ASSERT_EQ(layout.window(begin + offset, kPageBytes).begin, first.begin);
  }
}

TEST(Layout, WhatIsPopulatedAtTheStartIsAllButMessagesAndHeap) {
  for (const int ranks : {1, 2, 7, kMostRanks}) {
    const Layout layout(ranks, kHugePageBytes);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::uint64_t end = layout.arena(rank) + layout.populated_bytes();
      EXPECT_EQ(layout.slot(rank, kSlots - 1) + kSlotBytes, end);
      EXPECT_GE(layout.message_chunk(rank, 0, 0), end);
      EXPECT_GE(layout.heap(0).begin, end);
    }
  }
}

TEST(Layout, RoundsAndChunksGoRound) {
  const Layout layout(3, kHugePageBytes);
  EXPECT_EQ(layout.entry(1, 0xffff'ffff) + kLineBytes, layout.entry(1, 0) + kEntries * kLineBytes);
  EXPECT_EQ(layout.entry(2, 5), layout.entry(2, 5 + kEntries));
  EXPECT_EQ(layout.slot(2, 5), layout.slot(2, 5 + kSlots));
  EXPECT_EQ(layout.message_chunk(0, 2, 1), layout.message_chunk(0, 2, 1 + kMessageChunks));
}

}  // namespace
}  // namespace lockstep::shm
