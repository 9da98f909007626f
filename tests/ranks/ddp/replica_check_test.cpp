#include "lockstep/ddp/replica_check.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct CountedImpl : torch::nn::Module {
  CountedImpl() {
    input = register_module("input", torch::nn::Linear(5, 7));
    output = register_module("output", torch::nn::Linear(7, 3));
    count = register_buffer("count", at::zeros({2}, at::kLong));
  }
  at::Tensor forward(const at::Tensor& x) { return output(at::tanh(input(x))); }
  torch::nn::Linear input{nullptr};
  torch::nn::Linear output{nullptr};
  at::Tensor count;
};
TORCH_MODULE(Counted);

// The lowest bit of element `index`, in the tensor's memory.
void flip_bit(const at::Tensor& tensor, std::int64_t index) {
  auto* const bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[index * tensor.element_size()] ^= 1;
}

class ReplicaCheck : public DdpTest {
 protected:
  // The last rank is the one that drifts.
  bool drifts() const { return rank_ == world_size_ - 1; }
  std::string who() const {
    if (world_size_ == 2) return "rank 1 drifted from rank 0: rank 1 in ";
    if (world_size_ == 3) return "rank 2 drifted from ranks 0, 1: rank 2 in ";
    return "rank 3 drifted from ranks 0, 1, 2: rank 3 in ";
  }

  /// Whether every rank gets this one message, naming the last rank.
  void expect_drift(const std::string& message, const std::string& what) {
    EXPECT_SAYS(message, who() + what);
    const at::Tensor hash =
        at::full({1}, static_cast<std::int64_t>(std::hash<std::string>()(message)), at::kLong);
    EXPECT_TRUE(same_bits_everywhere({hash})) << message;
  }
  template <class Action>
  void expect_drift_of(Action&& action, const std::string& what) {
    expect_drift(message_of<ReplicaDrift>(action), what);
  }

  template <class Model>
  void step(Model& model, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    model(at::sin(at::arange(10) * (rank_ + 1.0)).view({2, 5})).square().mean().backward();
    optimizer.step();
  }
};

TEST_F(ReplicaCheck, AFlippedBitOfAnyTensorIsNamed) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t numel : {1, 7, 1009}) {
      const at::Tensor first = at::arange(13, at::kFloat);
      const at::Tensor second = at::arange(numel, at::kLong).remainder(2).to(dtype);
      const std::vector<NamedTensor> tensors{
          {"first", first}, {"empty", at::empty({0, 3})}, {"second", second}};
      check_replicas_agree(group_, tensors);
      if (world_size_ == 1) continue;
      if (drifts()) flip_bit(second, numel / 2);
      expect_drift_of([&] { check_replicas_agree(group_, tensors); }, "'second' (of 3)");
      if (drifts()) flip_bit(first, 12);
      expect_drift_of([&] { check_replicas_agree(group_, tensors); }, "'first' and 1 more (of 3)");
    }
  }
}

TEST_F(ReplicaCheck, NanEqualsNanOfTheSameBits) {
  const at::Tensor values = at::full({3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  check_replicas_agree(group_, {{"values", values}});
  NEEDS_RANKS(2);
  if (drifts()) flip_bit(values, 1);
  ASSERT_TRUE(std::isnan(values[1].item<double>()));
  expect_drift_of([&] { check_replicas_agree(group_, {{"values", values}}); }, "'values' (of 1)");
}

TEST_F(ReplicaCheck, WhereElementsLieIsNoDifference) {
  const at::Tensor values = at::arange(15, at::kFloat).view({3, 5});
  const at::Tensor turned = values.t().contiguous().t();
  check_replicas_agree(group_, {{"values", drifts() ? turned : values}});
}

TEST_F(ReplicaCheck, ShapeDtypeAndNamesCount) {
  NEEDS_RANKS(2);
  const at::Tensor zeros = at::zeros({4}, at::kInt);
  const auto check_own = [&](const NamedTensor& own) {
    return [&] { check_replicas_agree(group_, {drifts() ? own : NamedTensor{"values", zeros}}); };
  };
  expect_drift_of(check_own({"values", zeros.view({2, 2})}), "'values'");
  expect_drift_of(check_own({"values", zeros.view(at::kFloat)}), "'values'");
  expect_drift_of(check_own({"other", zeros}), "'values' and 1 more");
}

TEST_F(ReplicaCheck, MomentumStepsAndSettingsAreNamed) {
  Counted module;
  DistributedDataParallel model(module, {});
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3));
  step(model, sgd);
  step(model, adam);
  model.check_replicas_agree(sgd);
  model.check_replicas_agree(adam);
  NEEDS_RANKS(2);
  const auto key = module->output->weight.unsafeGetTensorImpl();
  if (drifts()) {
    flip_bit(static_cast<torch::optim::SGDParamState&>(*sgd.state().at(key)).momentum_buffer(), 9);
    auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().at(key));
    state.step(state.step() + 1);
  }
  model.check_replicas_agree();
  expect_drift_of([&] { model.check_replicas_agree(sgd); }, "'momentum_buffer of output.weight'");
  expect_drift_of([&] { model.check_replicas_agree(adam); }, "'step of output.weight'");
  if (drifts()) adam.state().erase(key);
  expect_drift_of([&] { model.check_replicas_agree(adam); }, "'step of output.weight' and 3 more");
  torch::optim::SGD other(module->input->parameters(), drifts() ? 0.1 : 0.2);
  expect_drift_of([&] { model.check_replicas_agree(other); }, "'lr of parameter group 0'");
}

TEST_F(ReplicaCheck, OfAShardedOptimizerOnlyTheSettingsAreCompared) {
  DistributedDataParallel model(Counted(), {});
  ShardedOptimizer<torch::optim::Adam> optimizer(model.parameters(),
                                                 torch::optim::AdamOptions(1e-3));
  step(model, optimizer);
  model.check_replicas_agree(optimizer);
  NEEDS_RANKS(2);
  if (drifts()) optimizer.param_groups()[0].options().set_lr(2e-3);
  expect_drift_of([&] { model.check_replicas_agree(optimizer); }, "'lr of parameter group 0'");
}

TEST_F(ReplicaCheck, AnOptimizerOfAnotherKindIsRefused) {
  NEEDS_RANKS(2);
  DistributedDataParallel model(Counted(), {});
  const torch::optim::LBFGS optimizer(model.parameters(), {});
  EXPECT_SAYS(message_of<UsageError>([&] { model.check_replicas_agree(optimizer); }),
              "leave the optimizer out");
}

TEST_F(ReplicaCheck, EverySoManyExchangesParametersAndBuffersAreCompared) {
  for (const bool in_buffer : {false, true}) {
    Counted module;
    DistributedDataParallel model(module, {.check_replicas_every = 2});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    step(model, optimizer);
    step(model, optimizer);
    step(model, optimizer);  // compares
    const at::Tensor drifting = in_buffer ? module->count : module->input->bias.detach();
    if (drifts()) flip_bit(drifting, 1);
    const auto forward = [&] { model(at::zeros({1, 5})); };
    if (in_buffer) {  // Which every exchange repairs.
      step(model, optimizer);
      if (drifts()) flip_bit(drifting, 1);
    } else {
      step(model, optimizer);  // not yet
    }
    module->eval();
    forward();  // no comparison: one rank alone may evaluate
    module->train();
    if (world_size_ == 1) return forward();
    expect_drift_of(forward, in_buffer ? "'count' (of 5)" : "'input.bias'");
  }
}

TEST_F(ReplicaCheck, EverySoManyExchangesWithTheOptimizer) {
  Counted module;
  DistributedDataParallel model(module, {.check_replicas_every = 1});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  model.check_replicas_with(optimizer);
  step(model, optimizer);
  step(model, optimizer);
  NEEDS_RANKS(2);
  const auto key = module->input->weight.unsafeGetTensorImpl();
  if (drifts()) {
    flip_bit(
        static_cast<torch::optim::SGDParamState&>(*optimizer.state().at(key)).momentum_buffer(), 3);
  }
  expect_drift_of([&] { step(model, optimizer); }, "'momentum_buffer of input.weight'");
}

TEST_F(ReplicaCheck, WhatIsLeftToEachRankIsNotCompared) {
  Counted module;
  DistributedDataParallel model(
      module,
      {.parameters_and_buffers_to_ignore = {"count", "input.bias"}, .check_replicas_every = 1});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  module->count.fill_(rank_);
  step(model, optimizer);
  step(model, optimizer);
  model.check_replicas_agree();

  Counted own_buffers;
  DistributedDataParallel unsynced(own_buffers,
                                   {.forward_sync_buffers = false, .check_replicas_every = 1});
  own_buffers->count.fill_(rank_);
  step(unsynced, optimizer);
  step(unsynced, optimizer);
}

TEST_F(ReplicaCheck, ComparesInNoSyncToo) {
  Counted module;
  DistributedDataParallel model(module, {.check_replicas_every = 1});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  step(model, optimizer);
  // Ranks that accumulate over different numbers of batches make the same calls.
  for (int batch = 0; batch < rank_; ++batch) {
    const auto no_sync = model.no_sync();
    model(at::ones({1, 5})).sum().backward();
  }
  step(model, optimizer);
  step(model, optimizer);
}

TEST_F(ReplicaCheck, ANegativeNumberOfStepsIsRefused) {
  EXPECT_SAYS(message_of<UsageError>([] {
                const DistributedDataParallel<CountedImpl> model(Counted(),
                                                                 {.check_replicas_every = -1});
              }),
              "check_replicas_every=-1");
}

}  // namespace
}  // namespace lockstep::testing
