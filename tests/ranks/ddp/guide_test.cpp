#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/lockstep.h"
#include "lockstep/os/files/temporary_directory.h"
#include "tests/ranks/ddp/guide_fixture.h"
#include "tests/ranks/folder_of_ranks.h"

// The examples of docs/distributed-data-parallel.md: the test `guide` finds each of them here.
namespace lockstep::testing {
namespace {

struct Halve final : lockstep::CommHook {
  std::string describe() const override { return "halve"; }
  std::function<void()> start(const lockstep::ProcessGroup& group,
                              const lockstep::HookBucket& bucket) override {
    bucket.buffer.div_(2);
    return lockstep::start_average(group, bucket.buffer);
  }
};

struct Reviews {
  at::Tensor words;
  std::vector<std::string> authors;
};

TEST_F(Guide, Accumulation) {
  const std::vector<at::Tensor> batches(4, inputs);
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);

  optimizer.zero_grad();
  for (int i = 0; i < 4; ++i) {
    const auto no_sync = model.no_sync(i < 3);  // the last exchanges the sum of all four
    (loss_of(model(batches[i])) / 4).backward();
  }
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
  NEEDS_RANKS(2);

  auto batches = model.join(*loader);
  for (auto& batch : batches) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(batch.data), batch.target);
    model.backward(loss, {.weight = static_cast<double>(batch.data.size(0))});
    optimizer.step();
  }
  expect_in_step(model);
}

TEST_F(Guide, UnevenInputsWithAccumulation) {
  using Examples = std::vector<torch::data::Example<>>;
  const auto loader = std::make_unique<Examples>(static_cast<std::size_t>(1 + 3 * rank_),
                                                 Examples::value_type(inputs, targets));
  Net net;
  lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  double total_loss = 0;

  auto batches = model.join(*loader, {.gradient_accumulation_steps = 4});
  for (auto& batch : batches) {
    {
      const auto accumulation = batches.accumulate();  // only the last of a step is exchanged
      auto loss = torch::mse_loss(model(batch.data), batch.target);
      if (batches.has_data()) total_loss += loss.item<double>();
      model.backward(loss, {.weight = static_cast<double>(batch.data.size(0))});
    }
    if (!batches.is_last()) continue;
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_GT(total_loss, 0);
  EXPECT_TRUE(same_bits_everywhere({model->first->weight.detach()}));
}

TEST_F(Guide, UnevenInputsOfATypeOfOnesOwn) {
  const std::vector<Reviews> reviews(static_cast<std::size_t>(1 + rank_), Reviews{inputs, {"me"}});
  Net net;
  lockstep::convert_sync_batchnorm(*net, {.process_group = group});
  lockstep::DistributedDataParallel model(net, {.process_group = group});

  auto batches = model.join(reviews, {.empty = [] { return Reviews{at::empty({0, 4}), {}}; }});
  for (auto& batch : batches) {
    auto loss = loss_of(model(batch.words));
    model.backward(loss, {.weight = static_cast<double>(batch.words.size(0))});
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
  const lockstep::testing::FolderOfRanks made(group, "guide-");
  const std::filesystem::path directory = made.path();
  const int step = 1;

  lockstep::SnapshotDirectory snapshots(directory, {.process_group = group});
  const auto resumed = snapshots.load_latest(*model, optimizer);
  EXPECT_FALSE(resumed);
  loss_of(model(inputs)).backward();
  optimizer.step();
  expect_in_step(model);
  snapshots.save(*model, optimizer, {.step = step});  // on every rank: gathers, then rank 0 writes
  group.barrier();
  const at::Tensor weight = model->first->weight.detach().clone();
  loss_of(model(inputs)).backward();
  optimizer.step();
  ASSERT_TRUE(snapshots.load_latest(*model, optimizer));
  EXPECT_TRUE(at::equal(model->first->weight, weight));
  group.barrier();
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

TEST_F(Guide, WhereTheTimeGoes) {
  const int steps = 100;
  const auto next_batch = [&] { return inputs; };

  auto timer = std::make_shared<lockstep::StepTimer>();
  lockstep::DistributedDataParallel model(Net(), {.process_group = group, .step_timer = timer});
  torch::optim::SGD optimizer(model->parameters(), 0.01);

  for (int step = 1; step <= steps; ++step) {
    const at::Tensor batch = [&] {
      const auto data = timer->phase(lockstep::StepPhase::kData);
      return next_batch();
    }();
    optimizer.zero_grad();
    loss_of(model(batch)).backward();  // forward, backward and exchange are marked by the wrapper
    {
      const auto update = timer->phase(lockstep::StepPhase::kOptimizer);
      optimizer.step();
    }
    if (step % 100 != 0) continue;
    const lockstep::StepSummary summary = timer->summarize(group);  // on every rank
    if (group.rank() == 0) std::cout << describe(summary);
  }
  expect_in_step(model);
}

TEST_F(Guide, ATrace) {
  const int steps = 12;
  const lockstep::TemporaryDirectory made(std::filesystem::temp_directory_path(), "guide-");
  const std::filesystem::path& directory = made.path();
  lockstep::DistributedDataParallel model(Net(), {.process_group = group});
  const auto train_step = [&] { loss_of(model(inputs)).backward(); };

  for (int step = 0; step < steps; ++step) {
    std::optional<lockstep::Trace> trace;
    if (step == 10) trace.emplace(directory / "trace.json");
    train_step();
  }
  EXPECT_FALSE(std::filesystem::is_empty(directory));
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
