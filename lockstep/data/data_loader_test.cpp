#include "lockstep/data/data_loader.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include "lockstep/base/error.h"
#include "lockstep/data/global_batch.h"

namespace lockstep {
namespace {

using Values = std::vector<std::int64_t>;

// Sample i is i.
struct Numbers : torch::data::datasets::Dataset<Numbers, torch::data::Example<>> {
  explicit Numbers(std::int64_t count) : values(at::arange(count)) {}
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor value = values[static_cast<std::int64_t>(index)];
    return {value, value};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(values.numel());
  }
  at::Tensor values;
};

auto numbers(std::int64_t count) {
  return Numbers(count).map(torch::data::transforms::Stack<>());
}

Values values_of(const torch::data::Example<>& batch) {
  const std::int64_t* const begin = batch.data.const_data_ptr<std::int64_t>();
  return {begin, begin + batch.data.numel()};
}

template <class Loader>
Values take(Loader& loader, std::int64_t most = 1'000) {
  Values all;
  for (auto& batch : loader) {
    const Values values = values_of(batch);
    all.insert(all.end(), values.begin(), values.end());
    if (--most == 0) break;
  }
  return all;
}

Values all_numbers(std::int64_t count) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return values;
}

Values in_order(Values values) {
  std::ranges::sort(values);
  return values;
}

TEST(DataLoader, EachLoopIsAnEpochInAnOrderOfItsOwn) {
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(numbers(29), {.batch_size = 4, .workers = workers});
    EXPECT_EQ(loader.size(), 8);
    const Values first = take(loader);
    EXPECT_EQ(loader.epoch(), 1);
    const Values second = take(loader);
    EXPECT_EQ(in_order(first), all_numbers(29));
    EXPECT_EQ(in_order(second), all_numbers(29));
    EXPECT_NE(first, second);
    DataLoader other(numbers(29), {.batch_size = 3});
    EXPECT_EQ(take(other), first) << "the order follows from seed and epoch";
  }
}

TEST(DataLoader, GoesOnAtACursorWithAnotherBatch) {
  DataLoader loader(numbers(29), {.batch_size = 4, .seed = 9});
  take(loader);
  DataCursor cursor;
  Values all;
  for (auto& batch : loader) {
    const Values values = values_of(batch);
    all.insert(all.end(), values.begin(), values.end());
    cursor = loader.cursor();
    if (cursor.batches == 3) break;
  }
  EXPECT_EQ(cursor, (DataCursor{.seed = 9, .epoch = 1, .consumed = 12, .batches = 3}));
  EXPECT_EQ(loader.cursor(), (DataCursor{.seed = 9, .epoch = 2})) << "where the next loop begins";
  for (const std::int64_t workers : {0, 2}) {
    DataLoader rest(numbers(29), {.batch_size = 5, .workers = workers});
    rest.set_cursor(cursor);
    Values both = all;
    const Values more = take(rest);
    both.insert(both.end(), more.begin(), more.end());
    EXPECT_EQ(in_order(both), all_numbers(29));
    EXPECT_EQ(rest.cursor(), (DataCursor{.seed = 9, .epoch = 2}));
  }
}

// Loaders of all ranks, in one process.
class LoaderRanks {
 public:
  LoaderRanks(std::int64_t samples, const DataLoaderOptions& options, int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      loaders_.push_back(std::make_unique<Loader>(numbers(samples), options));
      loaders_.back()->position()->set_part({.rank = rank, .world_size = world_size});
    }
  }
  void set_cursor(const DataCursor& cursor) {
    for (const auto& loader : loaders_) loader->set_cursor(cursor);
  }
  // The samples that count of the next batches, in the order of the ranks.
  std::vector<Values> take(std::int64_t most) {
    std::vector<Values> batches;
    for (const auto& loader : loaders_) {
      std::size_t number = 0;
      for (auto& batch : *loader) {
        cursor_ = loader->cursor();
        if (batches.size() <= number) batches.emplace_back();
        Values values = values_of(batch);
        const LoaderPosition& at = *loader->position();
        EXPECT_EQ(std::max<std::int64_t>(at.samples(), 1), batch.data.numel());
        values.resize(static_cast<std::size_t>(at.samples()));
        std::int64_t before = 0;
        for (int rank = 0; rank < at.world_size(); ++rank) {
          if (rank == &loader - loaders_.data()) {
            EXPECT_EQ(static_cast<std::int64_t>(batches[number].size()), before);
          }
          before += at.samples_of(rank);
        }
        EXPECT_EQ(at.batch_samples(), before);
        batches[number].insert(batches[number].end(), values.begin(), values.end());
        if (static_cast<std::int64_t>(++number) == most) break;
      }
      EXPECT_EQ(number, batches.size()) << "another number of batches on a rank";
    }
    return batches;
  }
  // Behind the last batch that was taken.
  const DataCursor& cursor() const { return cursor_; }

 private:
  using Loader = DataLoader<decltype(numbers(0))>;
  std::vector<std::unique_ptr<Loader>> loaders_;
  DataCursor cursor_;
};

TEST(DataLoader, AnEpochHasEachSampleOnceThroughResizes) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto samples = static_cast<std::int64_t>(1 + random() % 61);
    const DataLoaderOptions options{.batch_size = static_cast<std::int64_t>(1 + random() % 4),
                                    .split_batches = random() % 2 == 0,
                                    .seed = 9};
    DataLoader one(numbers(samples), {.batch_size = samples, .seed = 9});
    const Values order = take(one);
    DataCursor cursor{.seed = 9};
    Values all;
    while (cursor.consumed < samples) {
      LoaderRanks ranks(samples, options, static_cast<int>(1 + random() % 8));
      ranks.set_cursor(cursor);
      const auto batches = ranks.take(static_cast<std::int64_t>(1 + random() % 4));
      for (const Values& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
      cursor = ranks.cursor();
      ASSERT_EQ(cursor.consumed, static_cast<std::int64_t>(all.size())) << seed;
    }
    ASSERT_EQ(all, order) << seed;
  }
}

TEST(DataLoader, HasTheBatchesOfGlobalBatches) {
  const GlobalBatches global({.dataset_size = 29, .batch_size = 6, .seed = 11});
  for (int world_size = 1; world_size <= 8; ++world_size) {
    LoaderRanks ranks(29, {.batch_size = 6, .split_batches = true, .seed = 11}, world_size);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      const auto batches = ranks.take(100);
      ASSERT_EQ(static_cast<std::int64_t>(batches.size()), global.steps_per_epoch());
      for (std::int64_t i = 0; i < global.steps_per_epoch(); ++i) {
        EXPECT_EQ(
            batches[static_cast<std::size_t>(i)],
            global.indices(epoch * global.steps_per_epoch() + i, {.rank = 0, .world_size = 1}));
      }
    }
  }
}

TEST(DataLoader, OneThatIsLeftEarlyBeginsANewEpoch) {
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(numbers(29), {.batch_size = 4, .workers = workers});
    take(loader, 2);
    EXPECT_FALSE(loader.position()->is_in_pass());
    EXPECT_EQ(loader.epoch(), 1) << "as where it is resumed";
    EXPECT_EQ(in_order(take(loader)), all_numbers(29));
    EXPECT_EQ(loader.epoch(), 2);
  }
}

TEST(DataLoader, WhatIsSavedIsWhereALiveRunGoesOn) {
  for (const std::int64_t most : {1, 3, 8}) {  // 8: all
    DataLoader live(numbers(29), {.batch_size = 4});
    take(live, most);
    DataLoader resumed(numbers(29), {.batch_size = 4});
    resumed.set_cursor(live.position()->cursor_to_save());
    EXPECT_EQ(resumed.epoch(), live.epoch());
    EXPECT_EQ(take(resumed), take(live)) << most;
  }
}

TEST(DataLoader, AnEpochThatIsCutShortEndsAfterItsBatchesWhateverTheirSizeBecomes) {
  // At the batch, by the batches' size then, and how many are left.
  for (const auto& [done, size, left] : {std::tuple(1, 12, 2), {2, 12, 1}, {3, 12, 0}, {2, 1, 1}}) {
    DataLoader loader(numbers(29), {.batch_size = 4, .limit_batches = 3});
    DataLoader resumed(numbers(29), {.batch_size = size, .limit_batches = 3});
    for (auto& batch : loader) {
      ASSERT_TRUE(batch.data.defined());
      if (loader.cursor().batches < done) continue;
      resumed.set_cursor(loader.position()->cursor_to_save());
      break;
    }
    const std::int64_t epoch = resumed.epoch();
    EXPECT_EQ(epoch, left == 0 ? 1 : 0) << "a finished epoch is not continued";
    EXPECT_EQ(static_cast<std::int64_t>(take(resumed).size()),
              left == 0 ? 29 : std::min<std::int64_t>(29 - 4 * done, left * size));
    EXPECT_EQ(resumed.epoch(), epoch + 1);
  }
}

TEST(DataLoader, ALoopEndsWhereItsCursorIsSet) {
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(numbers(29), {.batch_size = 4, .workers = workers});
    std::int64_t batches = 0;
    for (auto& batch : loader) {
      ASSERT_TRUE(batch.data.defined());
      if (++batches == 2) loader.set_cursor({.epoch = 5, .consumed = 8, .batches = 2});
      ASSERT_LT(batches, 3);
    }
    EXPECT_EQ(loader.cursor(), (DataCursor{.epoch = 5, .consumed = 8, .batches = 2}));
    EXPECT_EQ(take(loader).size(), 21U);
  }
}

// Without drop_last, and in the middle of an epoch, it goes on with what is left.
TEST(DataLoader, AnEpochThatHasEndedDoesNotGoOnWithFewerRanks) {
  for (const bool drop_last : {false, true}) {
    for (const std::int64_t done : {1, 2}) {
      DataLoader loader(numbers(10), {.drop_last = drop_last});
      LoaderPosition& at = *loader.position();
      at.set_part({.rank = 0, .world_size = 4});
      bool is_resized = false;
      at.set_boundary_visit([&](LoaderBoundary) {
        if (is_resized || loader.cursor().batches < done) return;
        is_resized = true;
        at.go_to(loader.cursor(), {});
      });
      std::int64_t batches = 0;
      for (auto& batch : loader) batches += batch.data.numel();
      EXPECT_EQ(at.world_size(), 1);
      const bool has_ended = drop_last && done == 2;
      EXPECT_EQ(batches, has_ended ? 2 : done + 10 - 4 * done) << drop_last << " " << done;
      EXPECT_EQ(loader.cursor(), (DataCursor{.epoch = 1}));
    }
  }
}

TEST(DataLoader, KnowsTheBatchAtWhichTheLoopIs) {
  DataLoader loader(numbers(10), {.batch_size = 4, .shuffle = false});
  const LoaderPosition& at = *loader.position();
  EXPECT_FALSE(at.has_batch());
  std::int64_t number = 0;
  for (auto& batch : loader) {
    EXPECT_TRUE(at.is_in_pass());
    EXPECT_EQ(at.samples(), batch.data.numel());
    EXPECT_EQ(at.is_last(), number == 2);
    EXPECT_EQ(at.even_from_here(), 2 - number);
    EXPECT_EQ(values_of(batch).front(), 4 * number++);
  }
  EXPECT_EQ(number, 3);
  EXPECT_EQ(&*loader, &loader) << "as LibTorch's loaders, which are pointers, are looped over";
  EXPECT_FALSE(at.has_batch());
}

TEST(DataLoader, RefusesWhatHasNoBatches) {
  EXPECT_THROW(DataLoader(numbers(0), {}), UsageError);
  EXPECT_THROW(DataLoader(numbers(3), {.batch_size = 0}), UsageError);
  EXPECT_THROW(DataLoader(numbers(3), {.batch_size = 4, .drop_last = true}), UsageError);
  DataLoader loader(numbers(3), {});
  EXPECT_THROW(loader.set_cursor({.consumed = 4}), UsageError);
}

}  // namespace
}  // namespace lockstep
