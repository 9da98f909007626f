#include "lockstep/one_copy/internal/slot_plan.h"

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lockstep::inline internal {
namespace {

using Slots = std::vector<int>;

std::vector<bool> held(const Slots& slots, std::size_t count = 64) {
  std::vector<bool> is_held(count);
  for (const int slot : slots) is_held[static_cast<std::size_t>(slot)] = true;
  return is_held;
}

TEST(SlotPlan, RanksThatContinueKeepTheirSlotsAndNewOnesTakeThoseThatWereLeft) {
  EXPECT_EQ(assign_slots({-1, -1, -1}, held({})), (Slots{0, 1, 2}));
  // Rank 1 was replaced.
  EXPECT_EQ(assign_slots({0, -1, 2}, held({0, 2})), (Slots{0, 1, 2}));
  // Rank 0 was lost; the others are numbered again.
  EXPECT_EQ(assign_slots({1, 2}, held({1, 2})), (Slots{1, 2}));
  EXPECT_EQ(assign_slots({1, 2, -1, -1}, held({1, 2})), (Slots{1, 2, 0, 3}));
}

TEST(SlotPlan, SlotsOfProcessesOutsideTheGroupAreLeftToThem) {
  EXPECT_EQ(assign_slots({0, -1, -1}, held({0, 1})), (Slots{0, 2, 3}));
  EXPECT_EQ(assign_slots({-1, 4}, held({0, 2, 4})), (Slots{1, 4}));
  EXPECT_EQ(assign_slots({-1}, held({0, 1}, 3)), (Slots{2}));
  EXPECT_EQ(assign_slots({0, 1}, held({0, 1}, 2)), (Slots{0, 1}));
  EXPECT_EQ(assign_slots({0, -1}, held({0, 1}, 2)), std::nullopt);
  EXPECT_EQ(assign_slots({-1, -1}, held({}, 1)), std::nullopt);
}

TEST(SlotPlan, SlotsAreDifferentWhateverRanksHadBefore) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 1000; ++trial) {
    const int slots = 1 + static_cast<int>(random() % 64);
    Slots had(1 + random() % static_cast<unsigned>(slots));
    std::vector<bool> is_held(static_cast<std::size_t>(slots));
    for (std::size_t i = had.size(); i < is_held.size(); ++i) is_held[i] = random() % 2 == 0;
    std::shuffle(is_held.begin(), is_held.end(), random);
    for (int& slot : had) slot = static_cast<int>(random() % static_cast<unsigned>(slots + 2)) - 1;
    const std::optional<Slots> assigned = assign_slots(had, is_held);
    ASSERT_TRUE(assigned);
    const Slots& now = *assigned;
    ASSERT_EQ(std::set<int>(now.begin(), now.end()).size(), had.size());
    EXPECT_GE(*std::ranges::min_element(now), 0);
    EXPECT_LT(*std::ranges::max_element(now), slots);
    for (std::size_t rank = 0; rank < had.size(); ++rank) {
      const bool is_first = std::find(had.begin(), had.begin() + static_cast<std::ptrdiff_t>(rank),
                                      had[rank]) == had.begin() + static_cast<std::ptrdiff_t>(rank);
      if (had[rank] >= 0 && had[rank] < slots && is_first) {
        EXPECT_EQ(now[rank], had[rank]);
      } else {
        EXPECT_FALSE(is_held[static_cast<std::size_t>(now[rank])]);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::inline internal
