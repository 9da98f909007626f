#include "lockstep/ddp/distributed_data_parallel.h"

#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::int64_t hidden = 37) {
    first = register_module("first", torch::nn::Linear(10, hidden));
    second = register_module("second", torch::nn::Linear(hidden, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::relu(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Mlp);

// Several inputs, a tuple out, a parameter that one branch alone uses, and one that none does.
struct BranchedImpl : torch::nn::Module {
  BranchedImpl() {
    shared = register_module("shared", torch::nn::Linear(10, 5));
    branch = register_module("branch", torch::nn::Linear(10, 5));
    unused = register_parameter("unused", at::ones({3}));
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, bool take_branch) {
    const at::Tensor common = shared(x);
    return {take_branch ? common + branch(x) : common, x};
  }
  torch::nn::Linear shared{nullptr};
  torch::nn::Linear branch{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(Branched);

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(10));
    linear = register_module("linear", torch::nn::Linear(10, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Normed);

class Ddp : public ::testing::Test {
 protected:
  // Every rank builds from a seed of its own: only the exchange can make the replicas equal.
  void SetUp() override { torch::manual_seed(100 + rank_); }

  at::Tensor inputs(int rank, int step = 0) {
    return at::sin(at::arange(8 * 10, at::kFloat) * (1 + rank) + step).view({8, 10});
  }
  at::Tensor targets(int rank, int step = 0) {
    return at::cos(at::arange(8 * 5, at::kFloat) * (2 + rank) + step).view({8, 5});
  }

  // All ranks hold the same bits in each of the tensors.
  void expect_same_on_all_ranks(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor local = tensor.detach().contiguous();
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < world_size_; ++rank) all.push_back(at::empty_like(local));
      group_.all_gather(all, local);
      for (const at::Tensor& other : all) EXPECT_TRUE(at::equal(other, local));
    }
  }

  ProcessGroup group_ = default_process_group();
  int rank_ = group_.rank();
  int world_size_ = group_.world_size();
};

TEST_F(Ddp, StartsFromTheParametersAndBuffersOfRankZero) {
  Normed module;
  module->norm->running_mean.fill_(rank_ + 1);
  const at::Tensor rank_zero = module->linear->weight.detach().clone();
  group_.broadcast(rank_zero, 0);
  const DistributedDataParallel model(module);
  EXPECT_TRUE(at::equal(model->linear->weight, rank_zero));
  EXPECT_TRUE(at::equal(model->norm->running_mean, at::ones({10})));
  expect_same_on_all_ranks(model.parameters());
}

// The strides of dimensions of one element say nothing, and may be any.
TEST_F(Ddp, AParameterAloneWithOtherStridesStartsFromThatOfRankZero) {
  torch::nn::Module module;
  const at::Tensor weight =
      module.register_parameter("weight", at::rand({1, 8}).narrow(1, 0, 4).detach());
  const at::Tensor rank_zero = weight.detach().clone();
  group_.broadcast(rank_zero, 0);
  const DistributedDataParallel model(module);
  EXPECT_TRUE(at::equal(weight, rank_zero));
}

TEST_F(Ddp, EqualsOneProcessOnTheWholeBatchAndStaysInStepBitForBit) {
  for (const std::optional<double> bucket_cap_mb : {std::optional<double>(), {1e-6}, {2e-4}}) {
    DistributedDataParallel model(Mlp(), {.bucket_cap_mb = bucket_cap_mb});
    Mlp whole;
    {
      const torch::NoGradGuard no_grad;
      const auto ours = model.parameters();
      auto theirs = whole->parameters();
      for (std::size_t i = 0; i < ours.size(); ++i) theirs[i].copy_(ours[i]);
    }
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<at::Tensor> all_inputs;
    std::vector<at::Tensor> all_targets;
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      at::mse_loss(model(inputs(rank_, step)), targets(rank_, step)).backward();
      optimizer.step();

      all_inputs.clear();
      all_targets.clear();
      for (int rank = 0; rank < world_size_; ++rank) {
        all_inputs.push_back(inputs(rank, step));
        all_targets.push_back(targets(rank, step));
      }
      reference.zero_grad();
      at::mse_loss(whole->forward(at::cat(all_inputs)), at::cat(all_targets)).backward();
      reference.step();
      expect_same_on_all_ranks(model.parameters());
    }
    const auto ours = model.parameters();
    const auto theirs = whole->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-5, 1e-6));
    }
  }
}

TEST_F(Ddp, GradientsAreAveragedWhenBackwardReturns) {
  DistributedDataParallel model(Mlp{});
  at::mse_loss(model(inputs(rank_)), targets(rank_)).backward();
  at::Tensor expected = at::zeros_like(model->second->bias);
  {
    const torch::NoGradGuard no_grad;
    for (int rank = 0; rank < world_size_; ++rank) {
      const at::Tensor error = model->forward(inputs(rank)) - targets(rank);
      expected += error.sum(0) * 2 / error.numel() / world_size_;
    }
  }
  EXPECT_TRUE(at::allclose(model->second->bias.grad(), expected, 1e-5, 1e-7));
}

TEST_F(Ddp, NoSyncAccumulatesAndTheNextBackwardExchangesTheSum) {
  DistributedDataParallel model(Mlp{});
  for (int round = 0; round < 2; ++round) {  // The second round runs over rebuilt buckets.
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    {
      const auto guard = model.no_sync();
      {
        const auto nested = model.no_sync();
        at::mse_loss(model(inputs(rank_, 0)), targets(rank_, 0)).backward();
      }
      at::mse_loss(model(inputs(rank_, 1)), targets(rank_, 1)).backward();
    }
    at::mse_loss(model(inputs(rank_, 2)), targets(rank_, 2)).backward();
    const at::Tensor accumulated = model->first->weight.grad().clone();
    expect_same_on_all_ranks({accumulated});

    at::Tensor expected = at::zeros_like(accumulated);
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
      at::mse_loss(model(inputs(rank_, step)), targets(rank_, step)).backward();
      expected += model->first->weight.grad();
    }
    EXPECT_TRUE(at::allclose(accumulated, expected, 1e-5, 1e-7));
  }
}

TEST_F(Ddp, BuffersOfRankZeroReachAllAtTheEndOfAStep) {
  DistributedDataParallel model(Normed{});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::mse_loss(model(inputs(rank_, step)), targets(rank_, step)).backward();
    optimizer.step();
    expect_same_on_all_ranks(model->buffers());
  }
  // A training forward without backward leaves them apart until the next forward.
  model(inputs(rank_, 7));
  model->eval();
  model(inputs(rank_, 8));
  expect_same_on_all_ranks(model->buffers());
}

TEST_F(Ddp, EvaluationOnOneRankAloneNeedsNoPeer) {
  DistributedDataParallel model(Normed{});
  at::mse_loss(model(inputs(rank_)), targets(rank_)).backward();
  model->eval();
  if (rank_ == 0) model(inputs(0, 1));
  group_.barrier();
}

TEST_F(Ddp, BuffersStayLocalOnRequest) {
  DistributedDataParallel model(Normed(), {.forward_sync_buffers = false});
  at::mse_loss(model(inputs(rank_)), targets(rank_)).backward();
  at::Tensor mean = model->norm->running_mean.clone();
  group_.broadcast(mean, 0);
  EXPECT_EQ(at::equal(mean, model->norm->running_mean), rank_ == 0);
}

TEST_F(Ddp, ParametersUnusedOnSomeRanksGetTheOthersShareAndUnusedOnAllStayUndefined) {
  DistributedDataParallel model(Branched{});
  for (int step = 0; step < 3; ++step) {
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const auto [output, same] = model(inputs(rank_, step), /*take_branch=*/rank_ == 0);
    output.sum().backward();
    const at::Tensor expected = at::full({5}, 8.0 / world_size_);
    EXPECT_TRUE(at::allclose(model->branch->bias.grad(), expected));
    EXPECT_FALSE(model->unused.grad().defined());
    expect_same_on_all_ranks({model->branch->weight.grad(), model->shared->weight.grad()});
  }
}

TEST_F(Ddp, FrozenParametersAndSeveralDtypes) {
  Mlp module;
  module->to(at::kDouble);
  module->first->to(at::kFloat);
  module->first->bias.set_requires_grad(false);
  DistributedDataParallel model(module);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor hidden = model->first(inputs(rank_, step)).to(at::kDouble);
    model->second(hidden).sum().backward();
    EXPECT_FALSE(model->first->bias.grad().defined());
    expect_same_on_all_ranks({model->first->weight.grad(), model->second->weight.grad()});
  }
}

TEST_F(Ddp, TakesHoldersPointersTemporariesAndVariables) {
  const Mlp holder;
  const DistributedDataParallel from_holder(holder);
  EXPECT_EQ(from_holder.module(), holder.ptr());
  const auto pointer = std::make_shared<MlpImpl>();
  const DistributedDataParallel from_pointer(pointer);
  EXPECT_EQ(from_pointer.module(), pointer);
  MlpImpl variable;
  const DistributedDataParallel from_variable(variable);
  EXPECT_EQ(&*from_variable, &variable);
  DistributedDataParallel from_temporary(MlpImpl{});
  EXPECT_EQ(from_temporary(inputs(rank_)).sizes(), at::IntArrayRef({8, 5}));
}

TEST_F(Ddp, AModelThatDiffersIsRefusedOnEveryRankByName) {
  NEEDS_RANKS(2);
  const std::string message = message_of<UsageError>(
      [&] { const DistributedDataParallel model(Mlp(rank_ == world_size_ - 1 ? 38 : 37)); });
  EXPECT_SAYS(message, "model of rank " + std::to_string(world_size_ - 1));
  EXPECT_SAYS(message, "first.weight float [38, 10]");
  group_.barrier();  // The group is still of use.
}

TEST_F(Ddp, AModelWithNothingToTrainIsRefused) {
  Mlp module;
  for (at::Tensor& parameter : module->parameters()) parameter.set_requires_grad(false);
  EXPECT_THROW(DistributedDataParallel{module}, UsageError);
}

TEST_F(Ddp, ABucketCapThatIsNoSizeIsRefused) {
  EXPECT_THROW(DistributedDataParallel(Mlp(), {.bucket_cap_mb = 0}), UsageError);
  EXPECT_THROW(DistributedDataParallel(Mlp(), {.bucket_cap_mb = -1}), UsageError);
}

TEST_F(Ddp, ABufferWrittenOutsideForwardIsRankZerosInTheNext) {
  DistributedDataParallel model(Normed{});
  model->norm->running_mean.fill_(rank_ + 1);
  model(inputs(rank_));
  at::Tensor mean = at::empty_like(model->norm->running_mean);
  mean.copy_(inputs(rank_).mean(0) * 0.1 + 0.9);  // momentum 0.1, from rank 0's 1
  EXPECT_TRUE(at::allclose(model->norm->running_mean, mean, 1e-4, 1e-6));
}

TEST_F(Ddp, HalfPrecisionGradientsAreScaledByTheExactFraction) {
  Mlp half;
  half->to(at::kBFloat16);
  DistributedDataParallel replicas(half);
  replicas(inputs(0).to(at::kBFloat16)).sum().backward();  // the same gradients on every rank
  const at::Tensor averaged = replicas->second->weight.grad().to(at::kDouble);
  Mlp alone;
  alone->to(at::kBFloat16);
  {
    const torch::NoGradGuard no_grad;
    const auto ours = replicas.parameters();
    auto theirs = alone->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) theirs[i].copy_(ours[i]);
  }
  alone->forward(inputs(0).to(at::kBFloat16)).sum().backward();
  const at::Tensor exact = alone->second->weight.grad().to(at::kDouble);
  // Rounding errors cancel in the projection; a wrong factor does not.
  const double factor =
      (averaged * exact).sum().item<double>() / exact.square().sum().item<double>();
  EXPECT_NEAR(factor, 1.0, 1e-3);
}

TEST_F(Ddp, OptionsAndLayoutsThatDifferAreRefused) {
  NEEDS_RANKS(2);
  const auto refusal = [](const DistributedDataParallelOptions& options) {
    return message_of<UsageError>([&] { DistributedDataParallel(Mlp(), options); });
  };
  EXPECT_SAYS(refusal({.bucket_cap_mb = 1 + rank_}),
              "it has option bucket_cap_mb=2 where rank 0 has option bucket_cap_mb=1; build");
  EXPECT_SAYS(refusal({.forward_sync_buffers = rank_ == 0}),
              "it has option forward_sync_buffers=false where rank 0 has option "
              "forward_sync_buffers=true; build");
  Mlp module;
  if (rank_ == 1) {
    const torch::NoGradGuard no_grad;
    module->first->weight.set_data(at::rand({10, 37}).t());
  }
  EXPECT_THROW(DistributedDataParallel{module}, UsageError);
}

TEST_F(Ddp, AModuleChangedAfterWrappingIsRefusedByName) {
  NEEDS_RANKS(2);
  Mlp module;
  DistributedDataParallel model(module);
  module->to(at::kDouble);
  EXPECT_THROW(model(inputs(rank_).to(at::kDouble)), UsageError);
  Mlp other;
  DistributedDataParallel frozen(other);
  other->first->weight.set_requires_grad(false);
  EXPECT_THROW(frozen(inputs(rank_)), UsageError);
}

TEST_F(Ddp, BuffersOfAnyDtypeAreExchanged) {
  Mlp module;
  at::Tensor codes = module->register_buffer("codes", at::full({5}, rank_ + 1, at::kChar));
  const DistributedDataParallel model(module);
  EXPECT_TRUE(at::equal(codes, at::ones({5}, at::kChar)));
}

TEST_F(Ddp, UsesTheGroupItIsGiven) {
  const ProcessGroup alone = [&] {
    ProcessGroup mine;
    for (int rank = 0; rank < world_size_; ++rank) {
      const ProcessGroup group = group_.new_group({rank});
      if (group) mine = group;
    }
    return mine;
  }();
  DistributedDataParallel model(Mlp(), {.process_group = alone});
  at::mse_loss(model(inputs(rank_)), targets(rank_)).backward();
  EXPECT_TRUE(model->first->weight.grad().defined());
}

}  // namespace
}  // namespace lockstep::testing
