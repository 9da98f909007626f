#include "examples/mingpt/char_dataset.h"

#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"

namespace mingpt {
namespace {

at::Tensor letters(std::int64_t count) {
  return at::arange(count, at::kLong);
}

TEST(CharDataset, TargetsAreTheNextCharacters) {
  CharDataset dataset(letters(10), {.block_size = 3});
  EXPECT_EQ(*dataset.size(), 7U);
  const auto batch = dataset.get_batch({std::size_t{0}, std::size_t{6}});
  EXPECT_TRUE(batch.data.equal(at::tensor({0, 1, 2, 6, 7, 8}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch.target.equal(batch.data + 1));
}

TEST(CharDataset, PiecesSideBySideHaveEachTargetOnce) {
  CharDataset dataset(letters(11), {.block_size = 3, .stride = 3});
  EXPECT_EQ(*dataset.size(), 3U);
  const auto batch = dataset.get_batch({std::size_t{0}, std::size_t{1}, std::size_t{2}});
  EXPECT_TRUE(batch.target.flatten().equal(letters(10).narrow(0, 1, 9)));
}

TEST(CharDataset, GoesWithASamplerAndALoader) {
  lockstep::DistributedSampler sampler(7, {.num_replicas = 2, .rank = 1, .shuffle = false});
  const auto loader =
      torch::data::make_data_loader(CharDataset(letters(10), {.block_size = 3}), sampler, 3);
  std::vector<std::int64_t> first;
  for (auto& batch : *loader) {
    for (const at::Tensor& piece : batch.data.unbind(0))
      first.push_back(piece[0].item<std::int64_t>());
  }
  EXPECT_EQ(first, (std::vector<std::int64_t>{1, 3, 5, 0}));
}

TEST(CharDataset, ATextShorterThanAPieceIsRefused) {
  EXPECT_EQ(*CharDataset(letters(4), {.block_size = 3}).size(), 1U);
  EXPECT_THROW(CharDataset(letters(3), {.block_size = 3}), lockstep::UsageError);
  EXPECT_THROW(CharDataset(letters(3), {.block_size = 0}), lockstep::UsageError);
  EXPECT_THROW(CharDataset(letters(3), {.block_size = 1, .stride = 0}), lockstep::UsageError);
}

TEST(SplitText, HoldsOutTheEnd) {
  const TextParts parts = split_text(letters(11), 0.9);
  EXPECT_TRUE(parts.train.equal(letters(9)));
  EXPECT_EQ(parts.test.numel(), 2);
  EXPECT_EQ(split_text(letters(11), 1.0).test.numel(), 0);
  EXPECT_THROW(split_text(letters(11), 0.0), lockstep::UsageError);
}

}  // namespace
}  // namespace mingpt
