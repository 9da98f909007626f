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

// Everything that lies in one arena.
std::vector<Range> ranges_of(const Layout& layout, int rank) {
  std::vector<Range> ranges{{.begin = layout.control(rank), .bytes = sizeof(Control)},
                            layout.heap(rank)};
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
    for (const std::uint64_t arena_bytes : {Layout::least_arena_bytes(ranks), kHuge + 12345}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, arenas of " << arena_bytes);
      const Layout layout(ranks, arena_bytes);
      ASSERT_LE(layout.arena_bytes(), arena_bytes);
      std::uint64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        auto ranges = ranges_of(layout, rank);
        std::sort(ranges.begin(), ranges.end(),
                  [](const Range& a, const Range& b) { return a.begin < b.begin; });
        ASSERT_EQ(layout.arena(rank) % (2 << 20), 0U);
        ASSERT_EQ(ranges.front().begin, layout.arena(rank));
        for (const Range& range : ranges) {
          ASSERT_GE(range.begin, end);
          ASSERT_EQ(range.begin % kLineBytes, 0U);
          end = range.begin + range.bytes;
        }
        ASSERT_LE(end, layout.arena(rank) + layout.arena_bytes());
        ASSERT_EQ(layout.heap(rank).begin % (2 << 20), 0U);
        ASSERT_GT(layout.heap(rank).bytes, 0U);
      }
      ASSERT_LE(end, layout.segment_bytes());
    }
  }
}

TEST(Layout, WhatIsPopulatedAtTheStartIsAllButMessagesAndHeap) {
  for (const int ranks : {1, 2, 7, kMostRanks}) {
    const Layout layout(ranks, Layout::least_arena_bytes(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::uint64_t end = layout.arena(rank) + layout.populated_bytes();
      EXPECT_EQ(layout.slot(rank, kSlots - 1) + kSlotBytes, end);
      EXPECT_GE(layout.message_chunk(rank, 0, 0), end);
      EXPECT_GE(layout.heap(rank).begin, end);
    }
  }
}

TEST(Layout, RoundsAndChunksGoRound) {
  const Layout layout(3, Layout::least_arena_bytes(3));
  EXPECT_EQ(layout.entry(1, 0xffff'ffff) + kLineBytes, layout.entry(1, 0) + kEntries * kLineBytes);
  EXPECT_EQ(layout.entry(2, 5), layout.entry(2, 5 + kEntries));
  EXPECT_EQ(layout.slot(2, 5), layout.slot(2, 5 + kSlots));
  EXPECT_EQ(layout.message_chunk(0, 2, 1), layout.message_chunk(0, 2, 1 + kMessageChunks));
}

}  // namespace
}  // namespace lockstep::shm
