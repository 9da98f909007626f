#include "lockstep/snapshot/snapshot.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/broadcast_text.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/temporary_directory.h"
#include "lockstep/snapshot/agreement.h"
#include "lockstep/snapshot/random_state.h"
#include "lockstep/snapshot/small_net.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/snapshot_testing.h"

namespace lockstep::testing {
namespace {

/// A directory that all ranks see, and one training run over them.
class RankSnapshots : public ::testing::Test {
 protected:
  RankSnapshots() {
    if (rank() == 0) directory_.emplace(std::filesystem::temp_directory_path(), "rank-snapshots-");
    path_ = broadcast_text(group_, rank() == 0 ? directory_->path().string() : "", 0);
  }
  // Nobody removes it while others use it.
  ~RankSnapshots() override { group_.barrier(); }

  int rank() const { return group_.rank(); }
  void save(std::int64_t step) {
    SnapshotDirectory(path_).save(*net_, optimizer_, {.step = step});
    group_.barrier();
  }
  std::filesystem::path file(std::int64_t step) const {
    return path_ / SnapshotName{0, step}.file_name();
  }

  const ProcessGroup group_ = default_process_group();
  std::optional<TemporaryDirectory> directory_;
  std::filesystem::path path_;
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
  const std::string message =
      message_of<Error>([&] { SnapshotDirectory(path_).load_latest(*other, optimizer); });
  const std::string expected =
      rank() == odd_one ? "does not fit the model" : "failed on rank " + std::to_string(odd_one);
  EXPECT_NE(message.find(expected), std::string::npos) << message;
  EXPECT_TRUE(same_bits(other->first->weight.detach(), before));
}

TEST_F(RankSnapshots, WithoutAnyWholeSnapshotEveryRankFails) {
  save(1);
  if (rank() == 0) std::filesystem::resize_file(file(1), 1000);
  group_.barrier();
  const std::string message =
      message_of<Error>([&] { SnapshotDirectory(path_).load_latest(*net_, optimizer_); });
  EXPECT_NE(message.find("none of its 1 snapshots"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing
