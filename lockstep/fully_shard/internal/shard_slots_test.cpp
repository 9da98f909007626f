#include "lockstep/fully_shard/internal/shard_slots.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/fully_shard/internal/flat_layout.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSlotBytes = std::uint64_t{16} * 4096;

ShardSlots make_slots() {
  return {ShardSlots::make_file("lockstep test", kSlotBytes), kSlotBytes};
}

void keep(ShardSlots& slots, std::int64_t version, std::int64_t remembered, int ranks) {
  const int slot = slots.free_slot(version - 1, remembered);
  for (int rank = 0; rank < ranks; ++rank) slots.mark(slot, version, rank, ranks);
}

TEST(ShardSlots, AVersionCountsWhenAllRanksHaveMarkedIt) {
  ShardSlots slots = make_slots();
  EXPECT_FALSE(slots.find(1));
  slots.mark(0, 1, 2, 3);
  slots.mark(0, 1, 0, 3);
  EXPECT_FALSE(slots.find(1));
  slots.mark(0, 1, 1, 3);
  EXPECT_EQ(slots.find(1), 0);
  slots.unmark(0, 2);
  EXPECT_FALSE(slots.find(1));
}

TEST(ShardSlots, MarksOfAnotherNumberOfRanksDoNotComplete) {
  ShardSlots slots = make_slots();
  slots.mark(0, 1, 0, 2);
  slots.mark(0, 1, 1, 3);
  EXPECT_FALSE(slots.find(1));
}

TEST(ShardSlots, NeitherTheVersionNorTheRememberedOneIsOverwritten) {
  ShardSlots slots = make_slots();
  keep(slots, 1, 0, 2);
  std::int64_t remembered = 1;
  for (std::int64_t version = 2; version < 40; ++version) {
    const int slot = slots.free_slot(version - 1, remembered);
    EXPECT_NE(slot, slots.find(version - 1));
    EXPECT_NE(slot, slots.find(remembered));
    EXPECT_LT(slot, ShardSlots::kSlots);
    keep(slots, version, remembered, 2);
    EXPECT_TRUE(slots.find(remembered));
    if (version % 3 != 0) remembered = version;  // Else sections, in the middle of a step.
  }
}

TEST(ShardSlots, BoundariesAloneUseTwoSlots) {
  ShardSlots slots = make_slots();
  keep(slots, 1, 0, 2);
  for (std::int64_t version = 2; version < 10; ++version) {
    EXPECT_LT(slots.free_slot(version - 1, version - 1), 2);
    keep(slots, version, version - 1, 2);
  }
}

// Else the marks of a void step would complete the step that replaces it.
TEST(ShardSlots, LaterVersionsAreForgotten) {
  ShardSlots slots = make_slots();
  keep(slots, 1, 0, 2);
  const int slot = slots.free_slot(1, 1);
  slots.mark(slot, 2, 0, 2);
  slots.forget_after(1);
  EXPECT_TRUE(slots.find(1));
  slots.mark(slot, 2, 1, 2);
  EXPECT_FALSE(slots.find(2));
}

// What some ranks have written any number of ranks reads.
TEST(ShardSlots, AnyNumberOfRanksReadsWhatAnyNumberHasWritten) {
  const std::vector<std::vector<std::int64_t>> models{{1}, {5, 0, 3}, {64, 1, 17, 130}, {16, 16}};
  for (const auto& model : models) {
    for (int writers = 1; writers <= 6; ++writers) {
      const FlatLayout written = plan_flat_layout(model, writers, 16);
      const auto elements = static_cast<std::size_t>(written.parameters.back().end);
      std::vector<std::int64_t> memory(elements, -1);
      for (int rank = 0; rank < writers; ++rank) {
        for (std::size_t i = 0; i < model.size(); ++i) {
          const ElementRange own = written.elements_of(rank, i);
          for (std::int64_t at = own.begin; at < own.end; ++at) {
            memory[static_cast<std::size_t>(at)] = at;
          }
        }
      }
      for (int readers = 1; readers <= 6; ++readers) {
        const FlatLayout read = plan_flat_layout(model, readers, 16);
        ASSERT_EQ(read.parameters, written.parameters);
        std::vector<int> times(elements, 0);
        for (int rank = 0; rank < readers; ++rank) {
          const ElementRange chunk = read.elements_of(rank);
          EXPECT_LE(chunk.size(), read.chunk);
          for (std::size_t i = 0; i < model.size(); ++i) {
            const ElementRange own = read.elements_of(rank, i);
            EXPECT_EQ(own.size(), read.piece(rank, i).size());
            for (std::int64_t at = own.begin; at < own.end; ++at) {
              EXPECT_TRUE(chunk.begin <= at && at < chunk.end);
              EXPECT_EQ(memory[static_cast<std::size_t>(at)], at);
              ++times[static_cast<std::size_t>(at)];
            }
          }
        }
        for (const ElementRange& parameter : read.parameters) {
          for (std::int64_t at = parameter.begin; at < parameter.end; ++at) {
            EXPECT_EQ(times[static_cast<std::size_t>(at)], 1);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
