#include "lockstep/comm/backends/shm/team.h"

#include <gtest/gtest.h>

#include "lockstep/comm/backends/shm/engine_testing.h"

namespace lockstep::shm {
namespace {

constexpr std::uint32_t kShortBeforeTheWrap = 0xffff'ff00;

TEST(Team, ARankRunsAheadByItsEntriesAndNoFurther) {
  for (const std::uint32_t first : {std::uint32_t{0}, kShortBeforeTheWrap}) {
    const auto segment = testing_engine::make_segment(2, first);
    Team ahead(segment, 0, "test");
    Team behind(segment, 1, "test");
    for (std::uint32_t round = 0; round < 10 * kEntries; ++round) {
      SCOPED_TRACE(::testing::Message() << "round " << round << " after " << first);
      while (ahead.may_post(false)) ahead.post();
      ASSERT_EQ(ahead.next_round() - first, kEntries + round);
      ASSERT_FALSE(ahead.all_posted(first + round));
      ASSERT_EQ(ahead.blocked_on(), 1);
      ASSERT_TRUE(behind.may_post(true));
      behind.post();
      ASSERT_TRUE(ahead.all_posted(first + round));
      ASSERT_TRUE(behind.all_posted(first + round));
      ahead.set_released(first + round + 1);
      ASSERT_FALSE(ahead.may_post(false));
      behind.set_released(first + round + 1);
      ASSERT_EQ(ahead.may_post(true), false) << "its slots hold rounds that were not released";
    }
  }
}

TEST(Team, ASlotIsKeptUntilEveryPeerHasReleasedIt) {
  const auto segment = testing_engine::make_segment(2, kShortBeforeTheWrap);
  Team first(segment, 0, "test");
  Team second(segment, 1, "test");
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    ASSERT_TRUE(first.may_post(true));
    first.post();
  }
  EXPECT_FALSE(first.may_post(true));
  EXPECT_TRUE(first.may_post(false));
  first.set_released(kShortBeforeTheWrap + 1);
  EXPECT_FALSE(first.may_post(true));
  EXPECT_EQ(first.blocked_on(), 1);
  second.set_released(kShortBeforeTheWrap + 1);
  EXPECT_TRUE(first.may_post(true));
}

// Most collectives have nothing to reduce, so only what is released counts on.
TEST(Team, CountsOfReducedRoundsAreNotLeftBehindForGood) {
  const auto segment = testing_engine::make_segment(2);
  Team first(segment, 0, "test");
  Team second(segment, 1, "test");
  std::uint32_t rounds = 0;
  for (int step = 0; step < 20; ++step) {
    rounds += 0x1fff'fff1;
    first.set_released(rounds);
    second.set_released(rounds);
    ASSERT_FALSE(first.all_reduced(rounds)) << "after " << step << " steps";
    first.set_reduced(rounds + 1);
    ASSERT_FALSE(second.all_reduced(rounds)) << "after " << step << " steps";
    if (step % 5 != 4) continue;
    second.set_reduced(rounds + 1);
    ASSERT_TRUE(first.all_reduced(rounds));
  }
}

TEST(Team, CatchingUpTakesNothingBack) {
  const auto segment = testing_engine::make_segment(2);
  Team team(segment, 0, "test");
  Team peer(segment, 1, "test");
  constexpr std::uint32_t kRound = std::uint32_t{1} << 30;
  team.set_released(kRound - 1);
  peer.set_released(kRound - 1);
  for (Team* const each : {&team, &peer}) each->set_reduced(kRound + 1);
  team.set_released(kRound);
  EXPECT_TRUE(peer.all_reduced(kRound));
}

TEST(Team, WhoLeavesAbortsOrIsLateIsTold) {
  const auto segment = testing_engine::make_segment(4);
  Team team(segment, 0, "test");
  auto leaver = std::make_unique<Team>(segment, 1, "test");
  Team late(segment, 2, "test");
  Team aborter(segment, 3, "test");
  EXPECT_EQ(team.check_peers(1).reason, Reason::kNone);
  leaver.reset();
  EXPECT_EQ(team.check_peers(2).reason, Reason::kNone) << "only who waits for it need know";
  EXPECT_EQ(team.check_peers(1).word(), (Verdict{.reason = Reason::kLeft, .rank = 1}.word()));
  team.publish_failure({.reason = Reason::kLate, .rank = 2});
  aborter.abort();
  for (Team* const each : {&team, &late, &aborter}) {
    EXPECT_EQ(each->check_peers(1).word(), (Verdict{.reason = Reason::kLate, .rank = 2}.word()))
        << "the first verdict stands";
  }
}

TEST(Team, OutlivesTheThreadThatMadeIt) {
  const auto segment = testing_engine::make_segment(2);
  Team peer(segment, 0, "test");
  std::unique_ptr<Team> made;
  std::thread([&] { made = std::make_unique<Team>(segment, 1, "test"); }).join();
  EXPECT_EQ(peer.check_peers(1).reason, Reason::kNone);
  std::thread([&] { made.reset(); }).join();
  EXPECT_EQ(peer.check_peers(1).word(), (Verdict{.reason = Reason::kLeft, .rank = 1}.word()));
}

}  // namespace
}  // namespace lockstep::shm
