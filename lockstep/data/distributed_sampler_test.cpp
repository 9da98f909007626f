#include "lockstep/data/distributed_sampler.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using SampleIndices = std::vector<std::size_t>;

// The rest of the epoch under way, taken in batches of 3.
SampleIndices rest_of_epoch(DistributedSampler& sampler) {
  SampleIndices all;
  while (const auto batch = sampler.next(3)) all.insert(all.end(), batch->begin(), batch->end());
  return all;
}

SampleIndices epoch_of(DistributedSampler& sampler, std::uint64_t epoch) {
  sampler.set_epoch(epoch);
  sampler.reset();
  return rest_of_epoch(sampler);
}

// Its own index is all a sample holds.
struct IndexDataset : torch::data::datasets::BatchDataset<IndexDataset, SampleIndices> {
  SampleIndices get_batch(c10::ArrayRef<std::size_t> indices) override { return indices.vec(); }
  std::optional<std::size_t> size() const override { return 11; }
};

// What torch.utils.data.DistributedSampler of PyTorch 2.13 gives.
TEST(DistributedSampler, GivesTheIndicesOfPyTorch) {
  DistributedSampler first(10, {.num_replicas = 3, .rank = 0});
  DistributedSampler last(10, {.num_replicas = 3, .rank = 2, .seed = 5});
  EXPECT_EQ(epoch_of(first, 0), (SampleIndices{4, 5, 0, 2}));
  EXPECT_EQ(epoch_of(first, 1), (SampleIndices{5, 2, 9, 4}));
  EXPECT_EQ(epoch_of(last, 2), (SampleIndices{3, 7, 8, 0}));
}

TEST(DistributedSampler, KeepsTheOrderWithoutShuffle) {
  DistributedSampler sampler(7, {.num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_EQ(rest_of_epoch(sampler), (SampleIndices{1, 3, 5, 0}));
  EXPECT_EQ(epoch_of(sampler, 1), (SampleIndices{1, 3, 5, 0}));
}

TEST(DistributedSampler, DropsTheTailOrKeepsItOnce) {
  DistributedSampler drop(7, {.num_replicas = 2, .rank = 0, .shuffle = false, .drop_last = true});
  EXPECT_EQ(rest_of_epoch(drop), (SampleIndices{0, 2, 4}));
  DistributedSampler keep(7, {.num_replicas = 2, .rank = 1, .shuffle = false, .padding = false});
  EXPECT_EQ(keep.size(), 3U);
  EXPECT_EQ(rest_of_epoch(keep), (SampleIndices{1, 3, 5}));
}

TEST(DistributedSampler, IsOneReplicaWithoutAProcessGroup) {
  DistributedSampler sampler(5);
  SampleIndices indices = rest_of_epoch(sampler);
  std::sort(indices.begin(), indices.end());
  EXPECT_EQ(indices, (SampleIndices{0, 1, 2, 3, 4}));
}

TEST(DistributedSampler, OfNothingIsExhaustedAtOnce) {
  DistributedSampler sampler(0, {.num_replicas = 3, .rank = 1});
  EXPECT_EQ(sampler.size(), 0U);
  EXPECT_EQ(sampler.next(1), std::nullopt);
}

TEST(DistributedSampler, GivesADataLoaderItsRankAndTheEpochSetLater) {
  DistributedSampler sampler(11, {.num_replicas = 2, .rank = 1, .seed = 3});
  auto loader = torch::data::make_data_loader(IndexDataset(), sampler,
                                              torch::data::DataLoaderOptions(4).workers(1));
  for (const std::uint64_t epoch : {0, 1, 5}) {
    sampler.set_epoch(epoch);
    SampleIndices loaded;
    for (const auto& batch : *loader) loaded.insert(loaded.end(), batch.begin(), batch.end());
    DistributedSampler other(11, {.num_replicas = 2, .rank = 1, .seed = 3});
    EXPECT_EQ(loaded, epoch_of(other, epoch)) << "epoch " << epoch;
  }
}

TEST(DistributedSampler, ResumesWhereItWasSaved) {
  DistributedSampler saved(20, {.num_replicas = 2, .rank = 0});
  saved.set_epoch(4);
  saved.reset();
  saved.next(3);
  std::stringstream file;
  torch::serialize::OutputArchive output;
  saved.save(output);
  output.save_to(file);

  DistributedSampler resumed(20, {.num_replicas = 2, .rank = 0});
  torch::serialize::InputArchive input;
  input.load_from(file);
  resumed.load(input);
  EXPECT_EQ(resumed.epoch(), 4U);
  EXPECT_EQ(rest_of_epoch(resumed), rest_of_epoch(saved));
}

TEST(DistributedSampler, RefusesBatchesOfNothing) {
  DistributedSampler sampler(5, {.num_replicas = 1, .rank = 0});
  sampler.reset();
  EXPECT_THROW(sampler.next(0), UsageError);
}

TEST(DistributedSampler, RefusesRanksThatDoNotExist) {
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2, .rank = 2}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2, .rank = -1}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 0, .rank = 0}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.rank = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep
