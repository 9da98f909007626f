// Snapshots, copies and roll-backs of a training whose tensors are on a CUDA device.
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/recovery/internal/training_state.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "tests/ranks/cuda/fixture.h"
#include "tests/ranks/folder_of_ranks.h"

namespace lockstep::testing {
namespace {

class CudaState : public CudaTest {
 protected:
  torch::nn::Sequential make_net(double seed) const {
    torch::nn::Sequential net(torch::nn::Linear(6, 300), torch::nn::BatchNorm1d(300),
                              torch::nn::Linear(300, 4));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_(wave(parameter.numel(), 1, ++seed).view_as(parameter) * 0.3);
    }
    net->to(device_);
    return net;
  }
  static Tensors tensors_of(const torch::nn::Module& module) {
    Tensors copies;
    for (const at::Tensor& tensor : module.parameters()) copies.push_back(tensor.detach().cpu());
    for (const at::Tensor& tensor : module.buffers()) copies.push_back(tensor.detach().cpu());
    return copies;
  }
  template <class Optimizer>
  void train(torch::nn::Sequential& net, Optimizer& optimizer, double seed) const {
    optimizer.zero_grad();
    delay();
    net->forward(wave(5, 6, seed).to(on_device())).square().mean().backward();
    optimizer.step();
  }
  static void expect_equal(const Tensors& actual, const Tensors& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i].cpu(), expected[i].cpu())) << i;
    }
  }
};

// Training goes on while an asynchronous snapshot is written: it must hold the step it was taken
// at.
TEST_F(CudaState, SnapshotsHoldTheStepAtWhichTheyWereTaken) {
  const FolderOfRanks folder(group_, "cuda-snapshots-");
  torch::nn::Sequential net = make_net(0);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.1));
  train(net, optimizer, 1);
  at::manual_seed(1000 + static_cast<std::uint64_t>(rank_));
  SnapshotDirectory directory(folder.path(), {.asynchronous_saves = true, .process_group = group_});
  directory.save(*net, optimizer, {.step = 1});
  const Tensors saved = tensors_of(*net);
  const at::Tensor drawn = at::rand({16}, on_device());
  train(net, optimizer, 2);
  const Tensors later = tensors_of(*net);
  directory.wait();
  group_.barrier();

  torch::nn::Sequential other = make_net(50);
  torch::optim::Adam loaded(other->parameters(), torch::optim::AdamOptions(0.1));
  at::manual_seed(1);
  SnapshotDirectory again(folder.path(), {.process_group = group_});
  const auto resumed = again.load_latest(*other, loaded);
  ASSERT_TRUE(resumed);
  expect_equal({at::rand({16}, on_device())}, {drawn});
  if (rank_ == 0) expect_equal(tensors_of(*other), saved);
  train(other, loaded, 2);
  if (rank_ == 0) expect_equal(tensors_of(*other), later);
}

TEST_F(CudaState, AStepThatWasGivenUpLeavesNothing) {
  torch::nn::Sequential net = make_net(0);
  SGD optimizer(net->parameters(), SGDOptions{.lr = 0.1, .momentum = 0.9});
  const at::Tensor seen = at::zeros({3}, on_device());
  TrainingState state({.model = net.ptr(), .optimizer = &optimizer, .extra = {{"seen", seen}}});
  train(net, optimizer, 1);
  state.remember();
  const Tensors before = tensors_of(*net);
  delay();
  seen.add_(1);
  optimizer.zero_grad();
  net->forward(wave(5, 6, 2).to(on_device())).square().mean().backward();
  EXPECT_TRUE(state.roll_back());
  expect_equal(tensors_of(*net), before);
  expect_equal({seen}, {at::zeros({3})});

  state.remember();
  train(net, optimizer, 2);
  EXPECT_FALSE(state.roll_back()) << "the optimizer has stepped";
}

// Optimizers that nothing is known of: whether they have stepped shows in the parameters.
TEST_F(CudaState, AnUpdateShowsInTheParametersOfAnyOptimizer) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    torch::nn::Sequential net = make_net(0);
    net->to(dtype);
    torch::optim::SGD optimizer(net->parameters(), 0.1);  // without momentum it keeps no state
    TrainingState state({.model = net.ptr(), .optimizer = &optimizer});
    for (at::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = at::ones_like(parameter);
    }
    state.remember();
    EXPECT_TRUE(state.roll_back());
    for (at::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = at::ones_like(parameter);
    }
    state.remember();
    delay();
    optimizer.step();
    EXPECT_FALSE(state.roll_back());
  }
}

TEST_F(CudaState, TheStateOfARankMovesToAnother) {
  torch::nn::Sequential net = make_net(0);
  Adam optimizer(net->parameters(), AdamOptions{.lr = 0.1});
  const at::Tensor seen = at::full({3}, 7, on_device());
  TrainingState state({.model = net.ptr(), .optimizer = &optimizer, .extra = {{"seen", seen}}});
  train(net, optimizer, 1);
  const c10::IValue value = state.value();

  torch::nn::Sequential other = make_net(50);
  Adam moved(other->parameters(), AdamOptions{.lr = 0.1});
  const at::Tensor other_seen = at::zeros({3}, on_device());
  TrainingState target(
      {.model = other.ptr(), .optimizer = &moved, .extra = {{"seen", other_seen}}});
  target.take(value, 1);
  expect_equal(tensors_of(*other), tensors_of(*net));
  expect_equal({other_seen}, {seen});
  train(net, optimizer, 2);
  train(other, moved, 2);
  expect_equal(tensors_of(*other), tensors_of(*net));
}

TEST_F(CudaState, AStepDrawsTheSameNumbersWhenItComesAgain) {
  const auto drawn = [&](std::int64_t step) {
    seed_step(5, rank_, step, device_);
    return at::cat({at::rand({8}, on_device()).cpu(), at::rand({8})});
  };
  const at::Tensor first = drawn(3);
  EXPECT_FALSE(at::equal(drawn(4), first));
  EXPECT_TRUE(at::equal(drawn(3), first));
}

TEST_F(CudaState, ReplicasAreComparedOnTheDevice) {
  torch::nn::Sequential net = make_net(0);
  std::vector<NamedTensor> tensors;
  for (const auto& item : net->named_parameters()) tensors.push_back({item.key(), item.value()});
  check_replicas_agree(group_, tensors);
  NEEDS_RANKS(2);
  {
    const at::NoGradGuard no_grad;
    if (rank_ == 1) tensors[0].tensor[0][0].add_(1);
  }
  EXPECT_SAYS(message_of<Error>([&] { check_replicas_agree(group_, tensors); }), "rank 1 drifted");
}

}  // namespace
}  // namespace lockstep::testing
