#include "lockstep/comm/backends/shm/engine.h"

#include <cstring>
#include <latch>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/comm/backends/shm/all_reduce.h"
#include "lockstep/comm/backends/shm/engine_testing.h"
#include "lockstep/comm/backends/shm/transfer.h"

namespace lockstep::shm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_engine::error_in;
using testing_engine::on_ranks;
using testing_engine::soon;
using testing_engine::start;
using Outcomes = std::vector<testing_engine::Outcome>;

TEST(CheckInterval, AllowsTheFirstLookAndThenOneInEachInterval) {
  const auto start = Deadline::Clock::now();
  CheckInterval looks;
  EXPECT_TRUE(looks.allows(start));
  EXPECT_FALSE(looks.allows(start));
  EXPECT_FALSE(looks.allows(start + CheckInterval::kBetweenLooks - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(looks.allows(start + CheckInterval::kBetweenLooks));
  EXPECT_FALSE(looks.allows(start + CheckInterval::kBetweenLooks));
}

Outcomes all_well(int ranks) {
  return Outcomes(static_cast<std::size_t>(ranks));
}

std::unique_ptr<Operation> sum_of(std::vector<std::int32_t>& values, bool promise = false,
                                  std::optional<std::uint64_t> offset = std::nullopt) {
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  const Call call{.kind = CallKind::kAllReduce,
                  .element = Element::kInt32,
                  .in_shared_memory = promise,
                  .elements = values.size()};
  return make_all_reduce(call, {.element = Element::kInt32, .op = ReduceOp::kSum},
                         {.input = data, .output = data, .shared_offset = offset});
}

std::unique_ptr<Operation> barrier() {
  return make_transfer({.call = {.kind = CallKind::kBarrier}});
}

std::vector<std::int32_t> values_of(int rank, int number, std::size_t size) {
  std::vector<std::int32_t> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<std::int32_t>(i % 1009) * (rank + 1) + number;
  }
  return values;
}

std::vector<std::int32_t> expected_sum(int ranks, int number, std::size_t size) {
  std::vector<std::int32_t> values(size);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto theirs = values_of(rank, number, size);
    for (std::size_t i = 0; i < size; ++i) values[i] += theirs[i];
  }
  return values;
}

// In an entry, in a slot, in several slots with a rest.
constexpr std::size_t kSizes[] = {1, 8, 9, 1000, 1025, 3 * kSlotBytes / 4 + 7};

TEST(Engine, SumsWhileCountsWrapAround) {
  constexpr std::uint32_t kFirst = 0xffff'ffff - kEntries;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const auto outcomes = on_ranks(
        ranks,
        [&](Engine& engine) {
          const int rank = engine.team().rank();
          for (int number = 0; number < 20; ++number) {
            for (const std::size_t size : kSizes) {
              auto values = values_of(rank, number, size);
              engine.wait(*start(engine, "all_reduce", sum_of(values)), soon());
              ASSERT_EQ(values, expected_sum(ranks, number, size)) << size << " on rank " << rank;
            }
          }
          EXPECT_LT(engine.team().next_round(), kFirst) << "did not wrap around";
        },
        kFirst);
    EXPECT_EQ(outcomes, all_well(ranks));
  }
}

TEST(Engine, ManyAreUnderWayAtOnce) {
  constexpr int kUnderWay = 100;
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    std::vector<std::vector<std::int32_t>> values;
    std::vector<std::shared_ptr<Task>> tasks;
    for (int number = 0; number < kUnderWay; ++number) {
      values.push_back(values_of(engine.team().rank(), number, kSizes[number % 6]));
      tasks.push_back(start(engine, "all_reduce", sum_of(values.back())));
    }
    // The last first: the others are through by then.
    for (int number = kUnderWay - 1; number >= 0; --number) {
      const auto index = static_cast<std::size_t>(number);
      engine.wait(*tasks[index], soon());
      ASSERT_EQ(values[index], expected_sum(3, number, kSizes[number % 6]));
    }
  });
  EXPECT_EQ(outcomes, all_well(3));
}

TEST(Engine, ARankRunsAheadUntilEntriesOrSlotsAreFull) {
  for (const bool with_slots : {false, true}) {
    std::latch is_ahead(2);
    const auto outcomes = on_ranks(2, [&](Engine& engine) {
      constexpr std::size_t kTasks = 200;
      const std::size_t size = with_slots ? 1000 : 1;
      std::vector<std::vector<std::int32_t>> values(kTasks,
                                                    values_of(engine.team().rank(), 0, size));
      if (engine.team().rank() == 1) is_ahead.arrive_and_wait();
      std::vector<std::shared_ptr<Task>> tasks;
      for (auto& each : values) tasks.push_back(start(engine, "all_reduce", sum_of(each)));
      if (engine.team().rank() == 0) {
        EXPECT_EQ(engine.team().next_round(), with_slots ? kSlots : kEntries);
        is_ahead.count_down();
      }
      for (const auto& task : tasks) engine.wait(*task, soon());
      EXPECT_THAT(values, Each(expected_sum(2, 0, size)));
    });
    EXPECT_EQ(outcomes, all_well(2));
  }
}

TEST(Engine, GroupsWaitForEachOtherCrosswise) {
  const auto one = testing_engine::make_segment(2);
  std::latch both_present(2);
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    const int rank = engine.team().rank();
    Engine other(one, rank, "other", {});
    both_present.arrive_and_wait();
    // Rank 0 waits in this group first, rank 1 in the other; each has only started its part there.
    const auto here = start(engine, "barrier", barrier());
    const auto there = start(other, "barrier", barrier());
    rank == 0 ? engine.wait(*here, soon()) : other.wait(*there, soon());
    rank == 0 ? other.wait(*there, soon()) : engine.wait(*here, soon());
  });
  EXPECT_EQ(outcomes, all_well(2));
}

TEST(Engine, AnotherThreadMayWaitOrPoll) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    auto first = values_of(engine.team().rank(), 1, 100'000);
    auto second = values_of(engine.team().rank(), 2, 100'000);
    const auto first_task = start(engine, "all_reduce", sum_of(first));
    const auto second_task = start(engine, "all_reduce", sum_of(second));
    std::thread waiter([&] { engine.wait(*second_task, soon()); });
    while (!engine.poll(*first_task)) std::this_thread::yield();
    waiter.join();
    EXPECT_EQ(first, expected_sum(2, 1, 100'000));
    EXPECT_EQ(second, expected_sum(2, 2, 100'000));
  });
  EXPECT_EQ(outcomes, all_well(2));
}

TEST(Engine, CallsThatDifferAreAnErrorOnEveryRank) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    std::vector<std::int32_t> values(engine.team().rank() == 1 ? 4 : 5);
    engine.wait(*start(engine, "all_reduce", sum_of(values)), soon());
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "UsageError");
    EXPECT_THAT(outcome.text, AllOf(StartsWith("all_reduce number 0 of group 'test' on rank"),
                                    HasSubstr("all_reduce (SUM) of 4 int32 elements"),
                                    HasSubstr("all_reduce (SUM) of 5 int32 elements")));
  }
}

TEST(Engine, AfterAnErrorTheGroupIsOfNoUse) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    std::vector<std::int32_t> values(engine.team().rank() == 0 ? 4u : 5u);
    const auto failing = start(engine, "all_reduce", sum_of(values));
    EXPECT_THROW(engine.wait(*failing, soon()), UsageError);
    EXPECT_THROW(engine.wait(*failing, soon()), UsageError) << "the same when asked again";
    start(engine, "barrier", barrier());
  });
  for (const int rank : {0, 1}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome, error_in("CommError", "barrier", 1, rank, {}));
    EXPECT_THAT(outcome.text, HasSubstr("the group ended before with"));
  }
}

TEST(Engine, WhatIsStartedAfterARankHasLeftThrowsPeerLost) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    if (engine.team().rank() == 1) return;
    EXPECT_THROW(engine.wait(*start(engine, "barrier", barrier()), soon()), PeerLost);
    start(engine, "barrier", barrier());
  });
  EXPECT_EQ(outcomes[0], error_in("PeerLost", "barrier", 1, 0, {1}));
}

TEST(Engine, ARankThatLeavesEarlyIsNamed) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    engine.wait(*start(engine, "barrier", barrier()), soon());
    if (engine.team().rank() == 2) return;
    engine.wait(*start(engine, "barrier", barrier()), soon());
  });
  EXPECT_EQ(outcomes[2].error, "");
  for (const int rank : {0, 1}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome, error_in("PeerLost", "barrier", 1, rank, {2}));
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 2 (pid"), HasSubstr("left the group")));
  }
}

TEST(Engine, WhatARankPostedBeforeItLeftStillCounts) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    auto values = values_of(engine.team().rank(), 7, 1000);
    const auto task = start(engine, "all_reduce", sum_of(values));
    if (engine.team().rank() == 1) return;  // With its work pending.
    engine.wait(*task, soon());
    EXPECT_EQ(values, expected_sum(2, 7, 1000));
  });
  EXPECT_EQ(outcomes, all_well(2));
}

TEST(Engine, ALateRankIsNamedByTheOthersAndLearnsOfIt) {
  constexpr std::chrono::milliseconds kShort{50};
  std::latch others_are_through(3);
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    const bool is_late = engine.team().rank() == 1;
    if (is_late) others_are_through.arrive_and_wait();
    try {
      // What the others had posted is enough for the late rank's first.
      for (int i = 0; i < 2; ++i) {
        engine.wait(*start(engine, "barrier", barrier(), kShort), soon());
      }
    } catch (const Error&) {
      if (!is_late) others_are_through.count_down();
      throw;
    }
  });
  EXPECT_EQ(outcomes[0], error_in("TimeoutError", "barrier", 0, 0, {1}, kShort));
  EXPECT_EQ(outcomes[1], error_in("TimeoutError", "barrier", 1, 1, {1}, kShort));
  EXPECT_EQ(outcomes[2], error_in("TimeoutError", "barrier", 0, 2, {1}, kShort));
}

TEST(Engine, AWaitThatIsCutShortMayBeRepeated) {
  std::latch has_looked(2);
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    if (engine.team().rank() == 1) has_looked.arrive_and_wait();
    const auto task = start(engine, "barrier", barrier());
    if (engine.team().rank() == 0) {
      EXPECT_FALSE(engine.wait(*task, Deadline::after(std::chrono::milliseconds(5))));
      has_looked.count_down();
    }
    EXPECT_TRUE(engine.wait(*task, soon()));
  });
  EXPECT_EQ(outcomes, all_well(2));
}

TEST(Engine, AbortFromAnotherThreadEndsTheWaitsOfAll) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    const bool aborts = engine.team().rank() == 2;
    std::thread aborter;
    const auto task = start(engine, "barrier", barrier());
    engine.wait(*task, soon());
    if (aborts) aborter = std::thread([&] { engine.abort(); });
    std::vector<std::int32_t> values(5);
    const auto never = [&] {
      // Ranks 0 and 2 wait for rank 1, which waits for a message.
      if (engine.team().rank() != 1) return start(engine, "all_reduce", sum_of(values));
      return testing_engine::start_message(engine, "recv",
                                           {.direction = Message::Direction::kReceive,
                                            .peer = 0,
                                            .data = reinterpret_cast<std::byte*>(values.data()),
                                            .bytes = 20});
    };
    try {
      engine.wait(*never(), soon());
      ADD_FAILURE() << "did not end with an error";
    } catch (...) {
      if (aborts) aborter.join();
      throw;
    }
  });
  EXPECT_EQ(outcomes[0], error_in("PeerLost", "all_reduce", 1, 0, {2}));
  EXPECT_EQ(outcomes[1], error_in("PeerLost", "recv", 0, 1, {2}));
  EXPECT_EQ(outcomes[2], error_in("PeerLost", "all_reduce", 1, 2, {2}));
}

}  // namespace
}  // namespace lockstep::shm
