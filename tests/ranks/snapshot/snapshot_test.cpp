#include "lockstep/snapshot/snapshot.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/random_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/folder_of_ranks.h"

namespace lockstep::testing {
namespace {

/// A directory that all ranks see, and one training run over them.
class RankSnapshots : public ::testing::Test {
 protected:
  int rank() const { return group_.rank(); }
  void save(std::int64_t step) {
    SnapshotDirectory(path_).save(*net_, optimizer_, {.step = step});
    group_.barrier();
  }
  std::filesystem::path file(std::int64_t step) const {
    return path_ / SnapshotName{0, step}.file_name();
  }

  const ProcessGroup group_ = default_process_group();
  const FolderOfRanks folder_{group_, "rank-snapshots-"};
  const std::filesystem::path path_ = folder_.path();
  SmallNet net_;
  torch::optim::SGD optimizer_{net_->parameters(), 0.1};
};

TEST_F(RankSnapshots, EveryRankGetsTheModelOfRankZeroAndItsOwnRandomState) {
  at::manual_seed(1000 + static_cast<std::uint64_t>(rank()));
  save(7);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(1);

  SmallNet other;
  torch::optim::SGD optimizer(other->parameters(), 0.5);
  const auto resumed = SnapshotDirectory(path_).load_latest(*other, optimizer);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->step, 7);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
  const std::vector<at::Tensor> weights = gather_from_all(group_, other->first->weight.detach());
  for (const at::Tensor& weight : weights) EXPECT_TRUE(same_bits(weight, weights[0]));
  EXPECT_EQ(load_snapshot(file(7)).world_size, group_.world_size());
}

TEST_F(RankSnapshots, AllTakeTheOneBeforeWhenTheNewestIsDamaged) {
  save(1);
  save(2);
  if (rank() == 0) std::filesystem::resize_file(file(2), 1000);
  group_.barrier();
  const auto resumed = SnapshotDirectory(path_).load_latest(*net_, optimizer_);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->step, 1);
}

TEST_F(RankSnapshots, AFailureOnOneRankIsAnErrorOnAllAndChangesNothing) {
  save(1);
  const int odd_one = group_.world_size() - 1;
  SmallNet other(rank() == odd_one ? 5 : 8);
  const at::Tensor before = other->first->weight.detach().clone();
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  expect_failure_of<Error>(odd_one, "does not fit the model",
                           [&] { SnapshotDirectory(path_).load_latest(*other, optimizer); });
  EXPECT_TRUE(same_bits(other->first->weight.detach(), before));
}

TEST_F(RankSnapshots, WithoutAnyWholeSnapshotEveryRankFails) {
  save(1);
  if (rank() == 0) std::filesystem::resize_file(file(1), 1000);
  group_.barrier();
  EXPECT_SAYS(message_of<Error>([&] { SnapshotDirectory(path_).load_latest(*net_, optimizer_); }),
              "none of its 1 snapshots");
}

TEST_F(RankSnapshots, AfterALoadThatFailedOnEveryRankAllSaveTogether) {
  save(1);
  if (rank() == 0) std::filesystem::resize_file(file(1), 1000);
  group_.barrier();
  SnapshotDirectory snapshots(path_);
  EXPECT_THROW(snapshots.load_latest(*net_, optimizer_), Error);
  snapshots.save(*net_, optimizer_, {.step = 2});
  group_.barrier();
  EXPECT_EQ(snapshots.load_latest(*net_, optimizer_)->step, 2);
}

TEST_F(RankSnapshots, ADirectoryThatAnotherJobHasTakenIsAnErrorOnEveryRank) {
  SnapshotDirectory snapshots(path_);
  snapshots.claim();
  snapshots.save(*net_, optimizer_, {.step = 1});
  const std::filesystem::path lock = path_ / ".lock";
  if (rank() == 0) std::ofstream(lock) << "another job\nprocess 7 on another machine\n";
  expect_failure_of<Error>(0, "taken over by another job",
                           [&] { snapshots.save(*net_, optimizer_, {.step = 2}); });
  if (rank() == 0) std::filesystem::remove(lock);
  snapshots.save(*net_, optimizer_, {.step = 2});
  group_.barrier();
  EXPECT_EQ(snapshots.load_latest(*net_, optimizer_)->step, 2);
}

/// Each rank writes a share, of a ShardedOptimizer its own state.
class ShardedRankSnapshots : public RankSnapshots, public ::testing::WithParamInterface<bool> {
 protected:
  ShardedRankSnapshots() {
    // The same on all ranks, as DistributedDataParallel keeps them.
    for (auto& [name, tensor] : state_dict(*net_)) group_.broadcast(tensor, 0);
    at::manual_seed(5);
    train(net_, optimizer_, 1);
    train(net_, adam_, 2);
  }
  SnapshotDirectoryOptions options() const {
    return {.asynchronous_saves = GetParam(), .sharded_saves = true};
  }
  std::vector<std::string> names_in(const std::filesystem::path& path) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  ShardedOptimizer<torch::optim::Adam> adam_{net_->parameters(), torch::optim::AdamOptions(0.01)};
};

TEST_P(ShardedRankSnapshots, OfASharedModelEachRankWritesAPartAndOthersLoadTheWhole) {
  {
    SnapshotDirectory snapshots(path_, options());
    for (std::int64_t step = 1; step <= 3; ++step) {
      snapshots.save(*net_, adam_, {.step = step, .extra = {{"best", at::full({1}, step)}}});
    }
    snapshots.wait();
  }
  group_.barrier();
  EXPECT_EQ(names_in(path_).size(), 2u) << "retention";
  const std::filesystem::path newest = path_ / SnapshotName{0, 3, true}.file_name();
  EXPECT_EQ(names_in(newest).size(), static_cast<std::size_t>(group_.world_size()) + 1);

  // On as many ranks, and alone with an optimizer that is not sharded.
  SmallNet other;
  ShardedOptimizer<torch::optim::Adam> sharded(other->parameters(), torch::optim::AdamOptions(1));
  const auto resumed = SnapshotDirectory(path_).load_latest(*other, sharded);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->step, 3);
  EXPECT_EQ(resumed->extra.at(0).second.item().toLong(), 3);
  EXPECT_TRUE(same_weights(other, net_));
  const Snapshot whole = load_snapshot(newest);
  EXPECT_EQ(whole.world_size, group_.world_size());
  EXPECT_EQ(whole.random_state.size(), static_cast<std::size_t>(group_.world_size()));
  SmallNet alone;
  torch::optim::Adam plain(alone->parameters(), 1);
  load_state_dict(*alone, whole.model);
  load_optimizer_state_dict(plain, whole.optimizer);
  EXPECT_EQ(plain.state().size(), 6u);
  at::manual_seed(11);
  train(net_, adam_, 2);
  at::manual_seed(11);
  train(other, sharded, 2);
  at::manual_seed(11);
  train(alone, plain, 2);
  EXPECT_TRUE(same_weights(other, net_));
  EXPECT_TRUE(same_weights(alone, net_));
}

TEST_P(ShardedRankSnapshots, AReplicatedOptimizerIsSpreadToo) {
  SnapshotDirectory snapshots(path_, options());
  snapshots.save(*net_, optimizer_, {.step = 1});
  snapshots.wait();
  group_.barrier();
  SmallNet other;
  torch::optim::SGD optimizer(other->parameters(), 0.5);
  ASSERT_TRUE(snapshots.load_latest(*other, optimizer));
  EXPECT_TRUE(same_weights(other, net_));
}

TEST_P(ShardedRankSnapshots, WhatFailsOnOneRankFailsOnAllAndTheOneBeforeStays) {
  const int odd_one = group_.world_size() - 1;
  SnapshotDirectory snapshots(path_, options());
  snapshots.save(*net_, adam_, {.step = 1});
  snapshots.wait();
  group_.barrier();
  {
    std::optional<FullDisk> full;
    if (rank() == odd_one) full.emplace(100);
    expect_failure_of<Error>(odd_one, "free some space", [&] {
      snapshots.save(*net_, adam_, {.step = 2});
      if (GetParam()) snapshots.save(*net_, adam_, {.step = 3});
    });
  }
  group_.barrier();
  EXPECT_EQ(snapshots.newest()->step, 1);
  snapshots.save(*net_, adam_, {.step = 4});
  snapshots.wait();
  group_.barrier();
  EXPECT_EQ(snapshots.newest()->step, 4);
}

INSTANTIATE_TEST_SUITE_P(Writing, ShardedRankSnapshots, ::testing::Bool(),
                         [](const auto& asynchronous) {
                           return std::string(asynchronous.param ? "asynchronous" : "synchronous");
                         });

}  // namespace
}  // namespace lockstep::testing
