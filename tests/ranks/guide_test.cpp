#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/lockstep.h"
#include "tests/ranks/fixture.h"

// The examples of docs/distributed-data-parallel.md: the test `guide` finds each of them here.
namespace lockstep::testing {
namespace {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    last = register_module("last", torch::nn::Linear(6, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

struct Halve final : lockstep::CommHook {
  std::string describe() const override { return "halve"; }
  std::function<void()> start(const lockstep::ProcessGroup& group,
                              const lockstep::HookBucket& bucket) override {
    bucket.buffer.div_(2);
    return lockstep::start_average(group, bucket.buffer);
  }
};

class Guide : public Conformance {
 protected:
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

  void SetUp() override {
    inputs = at::sin(at::arange(32, at::kFloat) * (1 + rank_)).view({8, 4});
    targets = inputs.sum(1, true);
  }
  template <class Model>
  void expect_in_step(const Model& model) {
    for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
    Tensors state;
    for (const at::Tensor& parameter : model->parameters()) state.push_back(parameter.detach());
    EXPECT_TRUE(same_bits_everywhere(state));
  }

  const ProcessGroup& group = group_;
  at::Tensor inputs;
  at::Tensor targets;
  const double max_norm = 0.1;
};

TEST_F(Guide, Accumulation) {
  const std::vector<at::Tensor> batches(4, inputs);
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);

  optimizer.zero_grad();
  {
    const auto no_sync = model.no_sync();
    for (int i = 0; i < 3; ++i) (loss_of(model(batches[i])) / 4).backward();
  }
  (loss_of(model(batches[3])) / 4).backward();  // exchanges the sum of all four
  optimizer.step();
  expect_in_step(model);
}

TEST_F(Guide, WeightedMean) {
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});

  auto loss = torch::mse_loss(model(inputs), targets);  // the mean over this rank's samples
  model.backward(loss, {.weight = static_cast<double>(inputs.size(0))});
  expect_in_step(model);
}

TEST_F(Guide, UnevenInputs) {
  using Examples = std::vector<torch::data::Example<>>;
  const auto loader = std::make_unique<Examples>(static_cast<std::size_t>(rank_),
                                                 Examples::value_type(inputs, targets));
  Net net;
  lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  if (world_size_ == 1) return;  // rank 0 has no batch

  auto batches = model.join(*loader);
  for (auto& batch : batches) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(batch.data), batch.target);
    model.backward(loss, {.weight = static_cast<double>(batch.data.size(0))});
    optimizer.step();
  }
  expect_in_step(model);
}

TEST_F(Guide, Hooks) {
  auto hook = std::make_shared<lockstep::PowerSgdHook>(
      lockstep::PowerSgdOptions{.matrix_approximation_rank = 2, .start_power_sgd_iter = 100});
  lockstep::DistributedDataParallel model(Net(), {.process_group = group, .comm_hook = hook});
  loss_of(model(inputs)).backward();
  expect_in_step(model);

  lockstep::DistributedDataParallel halved(
      Net(), {.process_group = group, .comm_hook = std::make_shared<Halve>()});
  loss_of(halved(inputs)).backward();
  expect_in_step(halved);
}

TEST_F(Guide, LocalSgd) {
  lockstep::DistributedDataParallel model(
      Net(), {.process_group = group,
              .comm_hook = std::make_shared<lockstep::PostLocalSgdHook>(
                  lockstep::PostLocalSgdOptions{.start_local_sgd_iter = 100})});
  lockstep::PeriodicModelAverager averager(
      {.period = 4, .warmup_steps = 100, .process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  loss_of(model(inputs)).backward();

  optimizer.step();
  averager.average_parameters(model.parameters());
  expect_in_step(model);
}

TEST_F(Guide, Clipping) {
  lockstep::DistributedDataParallel model(Net(), {.process_group = group, .gradient_norm = true});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto loss = loss_of(model(inputs));

  loss.backward();
  lockstep::clip_grads_with_norm_(model->parameters(), max_norm, model.gradient_norm());
  optimizer.step();
  expect_in_step(model);
  EXPECT_LE(lockstep::get_total_norm(model->parameters()), max_norm);
}

TEST_F(Guide, ShardedOptimizer) {
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});
  lockstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-3), {.process_group = group});
  loss_of(model(inputs)).backward();
  optimizer.step();
  expect_in_step(model);
}

TEST_F(Guide, MixedPrecision) {
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);

  lockstep::GradScaler scaler;  // not needed for bfloat16, the CPU's default
  at::Tensor loss;
  {
    const lockstep::Autocast autocast;
    loss = torch::mse_loss(model(inputs), targets);
  }
  scaler.scale(loss).backward();
  scaler.step(optimizer);
  scaler.update();
  expect_in_step(model);
}

TEST_F(Guide, SyncBatchNorm) {
  Net net;  // its members are torch::nn::BatchNorm1d, as ever
  lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  loss_of(model(inputs)).backward();
  expect_in_step(model);
}

TEST_F(Guide, WhatIsExchanged) {
  lockstep::DistributedDataParallel model(Net(),
                                          {.process_group = group, .measure_exchange = true});
  loss_of(model(inputs)).backward();

  for (const auto& bucket : model.bucket_layout()) {
    std::cout << lockstep::name_of(bucket.kind) << ", " << bucket.bytes << " bytes\n";
  }
  std::cout << model.exchange_report().overlap_ratio << " of the exchange hidden by backward\n";
  expect_in_step(model);
}

TEST_F(Guide, OneProcess) {
  lockstep::DataParallel model(Net(), {.device_ids = {at::kCPU, at::kCPU}});
  torch::mse_loss(model(inputs), targets).backward();  // adds up in the module's .grad
  EXPECT_TRUE(model->first->weight.grad().defined());
}

TEST_F(Guide, ReplicasAgree) {
  lockstep::DistributedDataParallel model(Net(),
                                          {.process_group = group, .check_replicas_every = 1000});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  model.check_replicas_with(optimizer);
  loss_of(model(inputs)).backward();
  optimizer.step();
  model.check_replicas_agree(optimizer);
}

}  // namespace
}  // namespace lockstep::testing
