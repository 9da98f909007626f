#include "lockstep/data/global_batch.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"

namespace lockstep {
namespace {

using Samples = std::vector<std::int64_t>;

constexpr std::int64_t kSizes[] = {1, 2, 5, 12, 31, 96, 97};
constexpr std::int64_t kBatchSizes[] = {1, 2, 3, 8, 13, 97, 100};

Samples whole_batch(const GlobalBatches& batches, std::int64_t step) {
  return batches.indices(step, {.rank = 0, .world_size = 1});
}

Samples whole_epoch(const GlobalBatches& batches, std::int64_t epoch) {
  Samples all;
  for (std::int64_t step = 0; step < batches.steps_per_epoch(); ++step) {
    const Samples batch = whole_batch(batches, epoch * batches.steps_per_epoch() + step);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

Samples numbers_below(std::int64_t count) {
  Samples numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

Samples sorted(Samples indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

// The parts of all ranks, one behind the other; what their sizes differ by is one at most.
Samples joined_parts(const GlobalBatches& batches, std::int64_t step, int world_size) {
  Samples all;
  std::size_t least = SIZE_MAX;
  std::size_t most = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const Samples part = batches.indices(step, {.rank = rank, .world_size = world_size});
    all.insert(all.end(), part.begin(), part.end());
    least = std::min(least, part.size());
    most = std::max(most, part.size());
  }
  EXPECT_LE(most - least, 1U) << "step " << step << ", " << world_size << " ranks";
  return all;
}

TEST(GlobalBatches, HaveEachSampleOfAnEpochOnceWhateverTheWorldSizeBecomes) {
  std::mt19937 random(7);
  for (const std::int64_t size : kSizes) {
    for (const std::int64_t batch_size : kBatchSizes) {
      const GlobalBatches batches({.dataset_size = size, .batch_size = batch_size, .seed = 3});
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        Samples all;
        for (std::int64_t step = 0; step < batches.steps_per_epoch(); ++step) {
          const auto world_size = static_cast<int>(1 + random() % 9);
          const Samples batch =
              joined_parts(batches, epoch * batches.steps_per_epoch() + step, world_size);
          all.insert(all.end(), batch.begin(), batch.end());
        }
        ASSERT_EQ(all, whole_epoch(batches, epoch)) << size << " in batches of " << batch_size;
        ASSERT_EQ(sorted(all), numbers_below(size)) << size << " in batches of " << batch_size;
      }
    }
  }
}

TEST(GlobalBatches, AreOfTheSameSizeButForTheLastOfAnEpochWhichMayBeDropped) {
  for (const std::int64_t size : kSizes) {
    for (const std::int64_t batch_size : kBatchSizes) {
      for (const bool drop_last : {false, true}) {
        if (drop_last && size < batch_size) continue;
        const GlobalBatches batches(
            {.dataset_size = size, .batch_size = batch_size, .drop_last = drop_last});
        const std::int64_t kept = drop_last ? size - size % batch_size : size;
        ASSERT_EQ(batches.steps_per_epoch(), (kept + batch_size - 1) / batch_size);
        for (std::int64_t step = 0; step < 2 * batches.steps_per_epoch(); ++step) {
          const std::int64_t before = step % batches.steps_per_epoch() * batch_size;
          ASSERT_EQ(whole_batch(batches, step).size(),
                    static_cast<std::size_t>(std::min(batch_size, kept - before)));
          ASSERT_EQ(batches.epoch_of(step), step < batches.steps_per_epoch() ? 0 : 1);
        }
        const Samples all = sorted(whole_epoch(batches, 1));
        ASSERT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "one comes twice";
      }
    }
  }
}

TEST(GlobalBatches, LeaveRanksWithoutSamplesWhereThereAreMoreRanks) {
  const GlobalBatches batches({.dataset_size = 7, .batch_size = 3, .shuffle = false});
  EXPECT_EQ(batches.indices(0, {.rank = 2, .world_size = 5}), Samples{2});
  EXPECT_EQ(batches.indices(0, {.rank = 3, .world_size = 5}), Samples{});
  EXPECT_EQ(batches.indices(2, {.rank = 0, .world_size = 2}), Samples{6});
  EXPECT_EQ(batches.indices(2, {.rank = 1, .world_size = 2}), Samples{});
}

TEST(GlobalBatches, KeepTheOrderWithoutShuffle) {
  const GlobalBatches batches({.dataset_size = 12, .batch_size = 5, .shuffle = false});
  EXPECT_EQ(whole_epoch(batches, 0), numbers_below(12));
  EXPECT_EQ(whole_epoch(batches, 4), numbers_below(12));
}

TEST(GlobalBatches, AreInTheOrderOfTheDistributedSampler) {
  const GlobalBatches batches({.dataset_size = 31, .batch_size = 4, .seed = 5});
  DistributedSampler sampler(31, {.num_replicas = 1, .rank = 0, .seed = 5});
  for (const std::int64_t epoch : {0, 1, 6}) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    sampler.reset();
    const auto order = *sampler.next(31);
    EXPECT_EQ(whole_epoch(batches, epoch), Samples(order.begin(), order.end())) << epoch;
  }
}

TEST(GlobalBatches, FollowFromSeedAndEpoch) {
  const GlobalBatches batches({.dataset_size = 97, .batch_size = 8, .seed = 1});
  const GlobalBatches same({.dataset_size = 97, .batch_size = 8, .seed = 1});
  const GlobalBatches other({.dataset_size = 97, .batch_size = 8, .seed = 2});
  EXPECT_EQ(whole_epoch(batches, 3), whole_epoch(same, 3));
  EXPECT_NE(whole_epoch(batches, 0), whole_epoch(other, 0));
  EXPECT_NE(whole_epoch(batches, 0), whole_epoch(batches, 1));
}

TEST(GlobalBatches, AreTheSameInWhateverOrderStepsAreAskedFor) {
  const GlobalBatches batches({.dataset_size = 12, .batch_size = 5});
  const Samples first = whole_batch(batches, 2);
  const Samples of_next_epoch = whole_batch(batches, 5);
  EXPECT_EQ(whole_batch(batches, 2), first);
  EXPECT_EQ(whole_batch(batches, 5), of_next_epoch);
}

TEST(GlobalBatches, RefuseWhatHasNoSamples) {
  EXPECT_THROW(GlobalBatches({.dataset_size = 5, .batch_size = 0}), UsageError);
  EXPECT_THROW(GlobalBatches({.dataset_size = 0, .batch_size = 1}), UsageError);
  EXPECT_THROW(GlobalBatches({.dataset_size = -1, .batch_size = 1}), UsageError);
  EXPECT_THROW(GlobalBatches({.dataset_size = 5, .batch_size = 6, .drop_last = true}), UsageError);
}

TEST(GlobalBatches, RefuseRanksAndStepsThatDoNotExist) {
  const GlobalBatches batches({.dataset_size = 5, .batch_size = 2});
  EXPECT_THROW(batches.indices(-1, {.rank = 0, .world_size = 1}), UsageError);
  EXPECT_THROW(batches.indices(0, {.rank = 2, .world_size = 2}), UsageError);
  EXPECT_THROW(batches.indices(0, {.rank = -1, .world_size = 2}), UsageError);
  EXPECT_THROW(batches.indices(0, {.rank = 0, .world_size = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep
