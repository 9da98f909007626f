#include "lockstep/one_copy/internal/slot_plan.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lockstep::inline internal {
namespace {

using Slots = std::vector<int>;

TEST(SlotPlan, RanksThatContinueKeepTheirSlotsAndNewOnesTakeThoseThatWereLeft) {
  EXPECT_EQ(assign_slots({-1, -1, -1}, 64), (Slots{0, 1, 2}));
  // Rank 1 was replaced.
  EXPECT_EQ(assign_slots({0, -1, 2}, 64), (Slots{0, 1, 2}));
  // Rank 0 was lost; the others are numbered again.
  EXPECT_EQ(assign_slots({1, 2}, 64), (Slots{1, 2}));
  EXPECT_EQ(assign_slots({1, 2, -1, -1}, 64), (Slots{1, 2, 0, 3}));
  // A rank that was absent for a generation, whose slot another has taken meanwhile.
  EXPECT_EQ(assign_slots({0, 1, 1}, 64), (Slots{0, 1, 2}));
}

TEST(SlotPlan, SlotsAreDifferentWhateverRanksHadBefore) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 1000; ++trial) {
    const int slots = 1 + static_cast<int>(random() % 64);
    Slots had(1 + random() % static_cast<unsigned>(slots));
    for (int& slot : had) slot = static_cast<int>(random() % static_cast<unsigned>(slots + 2)) - 1;
    const Slots now = assign_slots(had, slots);
    ASSERT_EQ(std::set<int>(now.begin(), now.end()).size(), had.size());
    EXPECT_GE(*std::ranges::min_element(now), 0);
    EXPECT_LT(*std::ranges::max_element(now), slots);
    for (std::size_t rank = 0; rank < had.size(); ++rank) {
      const bool is_first =
          std::find(had.begin(), had.begin() + static_cast<std::ptrdiff_t>(rank), had[rank]) ==
          had.begin() + static_cast<std::ptrdiff_t>(rank);
      if (had[rank] >= 0 && had[rank] < slots && is_first) {
        EXPECT_EQ(now[rank], had[rank]);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::inline internal
