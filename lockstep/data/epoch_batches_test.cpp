#include "lockstep/data/epoch_batches.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "lockstep/data/global_batch.h"

namespace lockstep {
namespace {

std::vector<std::size_t> indices_below(std::int64_t count) {
  std::vector<std::size_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

// Those that count, of all ranks one behind the other.
std::vector<std::size_t> joined_shares(const EpochBatchOptions& options, const DataCursor& cursor,
                                       int world_size, std::int64_t number) {
  std::vector<std::size_t> all;
  for (int rank = 0; rank < world_size; ++rank) {
    const EpochBatches batches(options, cursor, {.rank = rank, .world_size = world_size});
    const BatchShare share = batches.share(number);
    EXPECT_GE(share.indices.size(), 1U);
    for (int of = 0; of < world_size; ++of) {
      const EpochBatches others(options, cursor, {.rank = of, .world_size = world_size});
      EXPECT_EQ(others.samples_of(number, rank), share.samples) << "as rank " << of << " knows it";
    }
    EXPECT_EQ(std::max<std::int64_t>(share.samples, 1),
              static_cast<std::int64_t>(share.indices.size()));
    all.insert(all.end(), share.indices.begin(), share.indices.begin() + share.samples);
    if (rank + 1 < world_size) continue;
    EXPECT_EQ(batches.batch_samples(number), static_cast<std::int64_t>(all.size()));
  }
  return all;
}

TEST(EpochBatches, CountEachSampleOnceWhateverTheNumberOfRanksAndTheBatchBecome) {
  std::mt19937 random(3);
  for (const std::int64_t size : {1, 2, 7, 31, 96, 97}) {
    for (int turn = 0; turn < 20; ++turn) {
      DataCursor cursor{.seed = 5, .epoch = turn};
      std::vector<std::size_t> all;
      while (cursor.consumed < size) {
        const auto world_size = static_cast<int>(1 + random() % 5);
        const EpochBatchOptions options{.dataset_size = size,
                                        .batch_size = static_cast<std::int64_t>(1 + random() % 12)};
        const EpochBatches batches(options, cursor, {.rank = 0, .world_size = world_size});
        const auto steps = static_cast<std::int64_t>(1 + random() % 4);
        for (std::int64_t i = 0; i < std::min(steps, batches.size()); ++i) {
          const auto batch = joined_shares(options, cursor, world_size, i);
          all.insert(all.end(), batch.begin(), batch.end());
        }
        cursor.consumed = batches.consumed_after(std::min(steps, batches.size()) - 1);
        ASSERT_EQ(cursor.consumed, static_cast<std::int64_t>(all.size()));
      }
      std::ranges::sort(all);
      ASSERT_EQ(all, indices_below(size));
    }
  }
}

TEST(EpochBatches, AreThoseOfGlobalBatches) {
  const GlobalBatches global({.dataset_size = 29, .batch_size = 6, .seed = 11});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    const EpochBatches batches({.dataset_size = 29, .batch_size = 6}, {.seed = 11, .epoch = epoch},
                               {.rank = 1, .world_size = 4});
    ASSERT_EQ(batches.size(), global.steps_per_epoch());
    for (std::int64_t i = 0; i < batches.size(); ++i) {
      const auto expected =
          global.indices(epoch * batches.size() + i, {.rank = 1, .world_size = 4});
      const auto share = batches.share(i).indices;
      EXPECT_EQ(std::vector<std::int64_t>(share.begin(), share.end()), expected);
    }
  }
}

TEST(EpochBatches, ARankWithoutASampleGetsTheFirstOfTheBatchWhichDoesNotCount) {
  const EpochBatchOptions options{.dataset_size = 10, .batch_size = 8, .shuffle = false};
  const EpochBatches batches(options, {}, {.rank = 3, .world_size = 4});
  ASSERT_EQ(batches.size(), 2);
  EXPECT_EQ(batches.share(0).indices, (std::vector<std::size_t>{6, 7}));
  const BatchShare last = batches.share(1);
  EXPECT_EQ(last.indices, std::vector<std::size_t>{8});
  EXPECT_EQ(last.samples, 0);
  EXPECT_EQ(batches.batch_samples(1), 2);
}

TEST(EpochBatches, KnowHowManyAreEven) {
  const EpochBatchOptions options{.dataset_size = 29, .batch_size = 8};
  const EpochBatches batches(options, {}, {.rank = 0, .world_size = 4});
  EXPECT_EQ(batches.size(), 4);
  EXPECT_EQ(batches.even_from(0), 3);
  EXPECT_EQ(batches.even_from(3), 0);
  const EpochBatches rest(options, {.consumed = 13}, {.rank = 0, .world_size = 4});
  EXPECT_EQ(rest.size(), 2);
  EXPECT_EQ(rest.even_from(0), 2);
  const EpochBatches thirds(options, {}, {.rank = 0, .world_size = 3});
  EXPECT_EQ(thirds.even_from(0), 0) << "8 samples do not divide by 3 ranks";
}

TEST(EpochBatches, MayLeaveOutTheRest) {
  EpochBatchOptions options{.dataset_size = 29, .batch_size = 8, .drop_last = true};
  EXPECT_EQ(EpochBatches(options, {}, {}).size(), 3);
  EXPECT_EQ(EpochBatches(options, {.consumed = 24}, {}).size(), 0);
  options.drop_last = false;
  EXPECT_EQ(EpochBatches(options, {.consumed = 24}, {}).size(), 1);
  EXPECT_EQ(EpochBatches(options, {.consumed = 29}, {}).size(), 0);
}

}  // namespace
}  // namespace lockstep
