#include "lockstep/data/distributed_sampler.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <tuple>

#include <ATen/ops/scalar_tensor.h>
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

// PyTorch's definition, word for word: lengthen or cut the order, then take every num_replicas-th.
SampleIndices by_definition(SampleIndices order, const DistributedSamplerOptions& options) {
  const auto replicas = static_cast<std::size_t>(*options.num_replicas);
  const SampleIndices once = order;
  if (options.drop_last) {
    order.resize(order.size() - order.size() % replicas);
  } else if (options.padding && !once.empty()) {
    for (std::size_t next = 0; order.size() % replicas != 0; next = (next + 1) % once.size()) {
      order.push_back(once[next]);
    }
  }
  SampleIndices taken;
  for (auto at = static_cast<std::size_t>(*options.rank); at < order.size(); at += replicas) {
    taken.push_back(order[at]);
  }
  return taken;
}

std::string saved_state(const DistributedSampler& sampler) {
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  archive.save_to(file);
  return file.str();
}

void load_state(DistributedSampler& sampler, const std::string& text) {
  std::istringstream file(text);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  sampler.load(archive);
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

TEST(DistributedSampler, IsTheStridedPartOfTheOrderForEverySizeAndWorld) {
  for (std::size_t size = 0; size <= 40; ++size) {
    for (const bool shuffle : {false, true}) {
      DistributedSampler whole(size, {.num_replicas = 1, .rank = 0, .shuffle = shuffle, .seed = 2});
      const SampleIndices order = epoch_of(whole, 7);
      for (int replicas = 1; replicas <= 9; ++replicas) {
        for (int rank = 0; rank < replicas; ++rank) {
          for (const auto& [drop_last, padding] :
               {std::tuple(false, true), {false, false}, {true, true}}) {
            const DistributedSamplerOptions options{.num_replicas = replicas,
                                                    .rank = rank,
                                                    .shuffle = shuffle,
                                                    .seed = 2,
                                                    .drop_last = drop_last,
                                                    .padding = padding};
            DistributedSampler sampler(size, options);
            const SampleIndices indices = epoch_of(sampler, 7);
            ASSERT_EQ(indices, by_definition(order, options))
                << size << " samples, rank " << rank << " of " << replicas;
            ASSERT_EQ(sampler.size(), indices.size());
          }
        }
      }
    }
  }
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
  DistributedSampler first(20, {.num_replicas = 2, .rank = 0});
  first.set_epoch(4);
  first.reset();
  first.next(3);
  DistributedSampler resumed(20, {.num_replicas = 2, .rank = 0});
  load_state(resumed, saved_state(first));
  EXPECT_EQ(resumed.epoch(), 4U);
  EXPECT_EQ(rest_of_epoch(resumed), rest_of_epoch(first));
}

// At each place of an epoch, from each number of ranks to each, and once more from there.
TEST(DistributedSampler, ResumesOnAnotherNumberOfRanksWithEachSampleOnce) {
  for (const std::size_t size : {1, 7, 12, 13}) {
    const auto ranks_of = [&](int replicas) {
      std::vector<DistributedSampler> ranks;
      for (int rank = 0; rank < replicas; ++rank) {
        ranks.emplace_back(size, DistributedSamplerOptions{
                                     .num_replicas = replicas, .rank = rank, .padding = false});
      }
      return ranks;
    };
    for (int first = 1; first <= 4; ++first) {
      for (int second = 1; second <= 4; ++second) {
        for (std::size_t at = 0; at <= size; ++at) {
          SampleIndices all;
          std::string archive;
          const auto take = [&](std::vector<DistributedSampler> ranks, std::size_t most) {
            for (DistributedSampler& sampler : ranks) {
              if (!archive.empty()) load_state(sampler, archive);
              if (most == 0) continue;
              const auto taken = sampler.next(most).value_or(SampleIndices());
              all.insert(all.end(), taken.begin(), taken.end());
            }
            archive = saved_state(ranks.front());
          };
          take(ranks_of(first), at);
          take(ranks_of(second), 1);
          take(ranks_of(second), 1);  // The same number: goes on there.
          take(ranks_of(3), size);
          std::ranges::sort(all);
          DistributedSampler order(size, {.num_replicas = 1, .rank = 0, .shuffle = false});
          ASSERT_EQ(all, rest_of_epoch(order))
              << size << " samples, " << at << " steps of " << first << ", then of " << second;
        }
      }
    }
  }
}

TEST(DistributedSampler, AnEpochThatHasEndedStaysSoOnAnotherNumberOfRanks) {
  DistributedSampler four(10, {.num_replicas = 4, .rank = 0, .drop_last = true});
  rest_of_epoch(four);
  DistributedSampler two(10, {.num_replicas = 2, .rank = 0, .drop_last = true});
  load_state(two, saved_state(four));
  EXPECT_EQ(two.next(1), std::nullopt) << "2 samples are left out, and fill a step of two ranks";
  two.reset();
  EXPECT_EQ(rest_of_epoch(two).size(), 5U) << "the next epoch is whole";
}

// Those of earlier versions have no more.
TEST(DistributedSampler, LoadsAnArchiveOfTheEpochAndThePositionAlone) {
  DistributedSampler sampler(20, {.num_replicas = 2, .rank = 1});
  const SampleIndices whole = epoch_of(sampler, 4);
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  archive.write("epoch", at::scalar_tensor(4, at::kLong));
  archive.write("position", at::scalar_tensor(3, at::kLong));
  archive.save_to(file);
  DistributedSampler resumed(20, {.num_replicas = 2, .rank = 1});
  load_state(resumed, file.str());
  EXPECT_EQ(rest_of_epoch(resumed), SampleIndices(whole.begin() + 3, whole.end()));
}

TEST(DistributedSampler, RefusesAnArchiveOfAnotherDataset) {
  DistributedSampler sampler(20, {.num_replicas = 2, .rank = 0});
  rest_of_epoch(sampler);
  DistributedSampler smaller(19, {.num_replicas = 3, .rank = 0, .drop_last = true});
  EXPECT_THROW(load_state(smaller, saved_state(sampler)), UsageError);
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
