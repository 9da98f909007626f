#include "lockstep/data/epoch_plan.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Positions = std::vector<std::int64_t>;

constexpr int kMostShards = 8;
constexpr std::int64_t kPlanSizes[] = {0, 1, 2, 3, 5, 7, 8, 9, 12, 13, 24, 31};
constexpr EpochTail kTails[] = {EpochTail::kKeep, EpochTail::kDrop, EpochTail::kRepeat};

Positions positions_of(const SampleRange& range) {
  Positions positions(static_cast<std::size_t>(range.size));
  std::iota(positions.begin(), positions.end(), range.begin);
  return positions;
}

// The rule, word for word: a queue of positions, of which each step takes the first, and deals them
// one by one.
class PlanQueue {
 public:
  PlanQueue(std::int64_t size, EpochTail tail) : tail_(tail) {
    for (std::int64_t i = 0; i < size; ++i) left_.push_back(i);
    next_repeated_ = size;
  }

  // The shares of the next step; none: the epoch has ended.
  std::vector<Positions> take(std::int64_t batch_size, int shards) {
    Positions step;
    if (has_ended_) return {};
    while (static_cast<std::int64_t>(step.size()) < batch_size && !left_.empty()) {
      step.push_back(left_.front());
      left_.pop_front();
    }
    const bool is_full = static_cast<std::int64_t>(step.size()) == batch_size;
    has_ended_ =
        !is_full || left_.empty() ||
        (tail_ == EpochTail::kDrop && static_cast<std::int64_t>(left_.size()) < batch_size);
    if (step.empty() || (!is_full && tail_ == EpochTail::kDrop)) return {};
    if (tail_ == EpochTail::kRepeat) {
      while (static_cast<std::int64_t>(step.size()) < batch_size) step.push_back(next_repeated_++);
    }
    std::vector<std::size_t> sizes(static_cast<std::size_t>(shards));
    for (std::size_t i = 0; i < step.size(); ++i) ++sizes[i % sizes.size()];
    std::vector<Positions> shares;
    auto next = step.begin();
    for (const std::size_t size : sizes) {
      shares.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
      next += static_cast<std::ptrdiff_t>(size);
    }
    return shares;
  }

  std::int64_t left() const { return static_cast<std::int64_t>(left_.size()); }

 private:
  EpochTail tail_;
  std::deque<std::int64_t> left_;
  std::int64_t next_repeated_ = 0;
  bool has_ended_ = false;
};

// So many steps by the same plan.
struct PlanLeg {
  std::int64_t batch_size = 1;
  int shards = 1;
  std::int64_t steps = 0;
};

class EpochPlanTest : public ::testing::TestWithParam<EpochTail> {
 protected:
  static EpochPlanOptions options_for(std::int64_t size, std::int64_t batch_size) {
    return {.dataset_size = size, .batch_size = batch_size, .tail = GetParam()};
  }

  // Walks the legs, and the rest of the epoch by the last one's plan. Compares with the queue, and
  // counts.
  void expect_each_once(std::int64_t size, const std::vector<PlanLeg>& legs) {
    PlanQueue queue(size, GetParam());
    DataCursor cursor{.seed = 3, .epoch = 4};
    std::vector<int> times(static_cast<std::size_t>(size));
    std::int64_t repeated = 0;
    std::int64_t largest = 1;
    for (const PlanLeg& leg : legs) {
      const bool is_rest = &leg == &legs.back();
      const EpochPlan plan(options_for(size, leg.batch_size), cursor, leg.shards);
      const std::int64_t steps = is_rest ? plan.steps() : std::min(leg.steps, plan.steps());
      largest = std::max(largest, leg.batch_size);
      for (std::int64_t i = 0; i < steps; ++i) {
        const auto expected = queue.take(leg.batch_size, leg.shards);
        ASSERT_EQ(expected.size(), static_cast<std::size_t>(leg.shards)) << i;
        for (int shard = 0; shard < leg.shards; ++shard) {
          const Positions share = positions_of(plan.share(i, shard));
          ASSERT_EQ(share, expected[static_cast<std::size_t>(shard)]) << i << ", shard " << shard;
          for (const std::int64_t position : share) {
            position < size ? ++times[static_cast<std::size_t>(position)] : ++repeated;
          }
        }
        cursor = plan.cursor_after(i);
        ASSERT_EQ(cursor.consumed, size - queue.left());
      }
      if (steps == plan.steps()) {
        ASSERT_TRUE(queue.take(leg.batch_size, leg.shards).empty()) << "the plan ends too soon";
        expect_ended(plan, size);
        break;
      }
    }
    const auto handed_out = static_cast<std::int64_t>(std::ranges::count(times, 1));
    ASSERT_EQ(std::ranges::count(times, 0) + handed_out, size) << "a sample came twice";
    ASSERT_GE(handed_out, options_for(size, largest).least_of_epoch());
    if (GetParam() != EpochTail::kDrop) {
      ASSERT_EQ(handed_out, size);
    }
    if (GetParam() != EpochTail::kRepeat) {
      ASSERT_EQ(repeated, 0);
    }
    ASSERT_LT(repeated, largest);
  }

  static void expect_ended(const EpochPlan& plan, std::int64_t size) {
    for (int shards = 1; shards <= kMostShards; ++shards) {
      ASSERT_EQ(EpochPlan(options_for(size, 1), plan.end(), shards).steps(), 0) << shards;
    }
  }
};

TEST_P(EpochPlanTest, HandsOutEachSampleOnceThroughOneResizeWhereverItIs) {
  for (const std::int64_t size : kPlanSizes) {
    for (int before = 1; before <= kMostShards; ++before) {
      for (int after = 1; after <= kMostShards; ++after) {
        for (const std::int64_t per_shard : {1, 3}) {
          const std::int64_t batch_size = before * per_shard;
          for (std::int64_t at = 0; at <= size / batch_size + 1; ++at) {
            SCOPED_TRACE(::testing::Message()
                         << size << " samples, after step " << at << " " << before << " to "
                         << after << " shards, of " << per_shard);
            // The batch stays, or grows with the shards.
            expect_each_once(size, {{batch_size, before, at}, {batch_size, after}});
            expect_each_once(size, {{batch_size, before, at}, {after * per_shard, after}});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(EpochPlanTest, HandsOutEachSampleOnceThroughAnyResizes) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::vector<PlanLeg> legs(1 + random() % 6);
    for (PlanLeg& leg : legs) {
      leg = {.batch_size = static_cast<std::int64_t>(1 + random() % 12),
             .shards = static_cast<int>(1 + random() % kMostShards),
             .steps = static_cast<std::int64_t>(random() % 4)};
    }
    SCOPED_TRACE(seed);
    expect_each_once(static_cast<std::int64_t>(random() % 98), legs);
    if (HasFatalFailure()) return;
  }
}

// A plan that begins at a step is the rest of the plan from the epoch's beginning.
TEST_P(EpochPlanTest, SeekingIsWalking) {
  for (const std::int64_t size : kPlanSizes) {
    for (const std::int64_t batch_size : {1, 2, 3, 5, 8}) {
      for (int shards = 1; shards <= kMostShards; ++shards) {
        const EpochPlanOptions options = options_for(size, batch_size);
        const EpochPlan whole(options, {.epoch = 2}, shards);
        for (std::int64_t from = 1; from <= whole.steps(); ++from) {
          const EpochPlan rest(options, whole.cursor_after(from - 1), shards);
          ASSERT_EQ(rest.steps(), whole.steps() - from) << size << " " << batch_size;
          ASSERT_EQ(rest.end(), whole.end());
          for (std::int64_t i = 0; i < rest.steps(); ++i) {
            ASSERT_EQ(rest.step(i), whole.step(from + i));
            ASSERT_EQ(rest.cursor_after(i), whole.cursor_after(from + i));
            ASSERT_EQ(rest.even_from(i), whole.even_from(from + i));
            for (int shard = 0; shard < shards; ++shard) {
              ASSERT_EQ(rest.share(i, shard), whole.share(from + i, shard));
            }
          }
        }
      }
    }
  }
}

TEST_P(EpochPlanTest, KnowsHowManyStepsAreEven) {
  for (const std::int64_t size : kPlanSizes) {
    for (const std::int64_t batch_size : {1, 2, 4, 6, 8}) {
      for (int shards = 1; shards <= kMostShards; ++shards) {
        const EpochPlan plan(options_for(size, batch_size), {}, shards);
        const auto is_even = [&](std::int64_t i) {
          for (int shard = 0; shard < shards; ++shard) {
            if (plan.share(i, shard).size * shards != batch_size) return false;
          }
          return true;
        };
        for (std::int64_t i = 0; i < plan.steps(); ++i) {
          std::int64_t even = 0;
          while (i + even < plan.steps() && is_even(i + even)) ++even;
          ASSERT_EQ(plan.even_from(i), even) << size << " " << batch_size << " " << shards;
        }
      }
    }
  }
}

std::string name_of_tail(const ::testing::TestParamInfo<EpochTail>& info) {
  if (info.param == EpochTail::kKeep) return "Keep";
  return info.param == EpochTail::kDrop ? "Drop" : "Repeat";
}

INSTANTIATE_TEST_SUITE_P(Tails, EpochPlanTest, ::testing::ValuesIn(kTails), name_of_tail);

TEST(EpochPlan, SaysWhichSamplesAreRepeated) {
  const EpochPlan plan({.dataset_size = 7, .batch_size = 4, .tail = EpochTail::kRepeat}, {}, 4);
  ASSERT_EQ(plan.steps(), 2);
  EXPECT_EQ(plan.share(1, 2), (SampleRange{.begin = 6, .size = 1}));
  EXPECT_EQ(plan.share(1, 3), (SampleRange{.begin = 7, .size = 1})) << "behind the last sample";
  EXPECT_EQ(EpochOrder(7, false).sample(7), 0U);
  EXPECT_EQ(plan.cursor_after(1).consumed, 7);
}

TEST(EpochPlan, AShardWithoutASampleMayHaveAPaddingSample) {
  const EpochPlan plan({.dataset_size = 10, .batch_size = 8}, {}, 4);
  EXPECT_EQ(plan.share_or_padding(0, 3), (SampleRange{.begin = 6, .size = 2}));
  EXPECT_EQ(plan.share(1, 3).size, 0);
  EXPECT_EQ(plan.share_or_padding(1, 3), (SampleRange{.begin = 8, .size = 1}));
}

TEST(EpochPlan, ALimitCountsTheStepsBeforeTheCursorToo) {
  const EpochPlanOptions options{.dataset_size = 29, .batch_size = 4, .limit_batches = 3};
  EXPECT_EQ(EpochPlan(options).steps(), 3);
  EXPECT_EQ(EpochPlan(options, {.consumed = 12, .batches = 1}).steps(), 2);
  EXPECT_EQ(EpochPlan(options, {.consumed = 12, .batches = 5}).steps(), 0);
  EXPECT_EQ(EpochPlan(options).even_from(0), 3);
  EXPECT_EQ(EpochPlan(options).end(), (DataCursor{.consumed = 29, .batches = 3}));
}

TEST(EpochOrder, IsAPermutationThatFollowsFromSeedAndEpoch) {
  for (const std::int64_t size : {0, 1, 2, 7, 97}) {
    EpochOrder order(size, true);
    order.set_epoch(5, 3);
    const auto samples = order.samples({.begin = 0, .size = size});
    auto sorted = samples;
    std::ranges::sort(sorted);
    ASSERT_EQ(sorted, EpochOrder(size, false).samples({.begin = 0, .size = size}));
    EpochOrder other(size, true);
    other.set_epoch(4, 4);
    EXPECT_EQ(other.samples({.begin = 0, .size = size}), samples) << "of seed + epoch";
    const EpochOrder copy = order;
    order.set_epoch(5, 4);
    EXPECT_EQ(copy.samples({.begin = 0, .size = size}), samples) << "a copy keeps its epoch";
    if (size > 2) {
      EXPECT_NE(order.samples({.begin = 0, .size = size}), samples);
    }
  }
}

}  // namespace
}  // namespace lockstep
