// Accelerator: the same training on any number of ranks, and what it gathers and reduces.
#include "lockstep/train/accelerator.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/data/global_batch.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

struct AcceleratorPlan {
  std::int64_t samples = 29;
  std::int64_t batch_size = 3;
  int accumulated = 1;
  int epochs = 2;
};

class AcceleratorOracle : public AcceleratorTest {
 protected:
  // What one process does with all samples of a step at once.
  Tensors by_one_process(const AcceleratorPlan& plan) const {
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const SineRows all(plan.samples);
    const GlobalBatches batches({.dataset_size = plan.samples,
                                 .batch_size = plan.batch_size * world_size_ * plan.accumulated});
    for (int epoch = 0; epoch < plan.epochs; ++epoch) {
      for (std::int64_t i = 0; i < batches.steps_per_epoch(); ++i) {
        const at::Tensor chosen = at::tensor(
            batches.indices(epoch * batches.steps_per_epoch() + i, {.rank = 0, .world_size = 1}));
        optimizer.zero_grad();
        at::mse_loss(net->forward(all.inputs.index_select(0, chosen)),
                     all.targets.index_select(0, chosen))
            .backward();
        optimizer.step();
      }
    }
    return copies_of(net);
  }

  Tensors accelerated(const AcceleratorPlan& plan) const {
    Accelerator accelerator({.gradient_accumulation_steps = plan.accumulated});
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer, loader] = accelerator.prepare(
        net, sgd, torch::data::make_data_loader(sine_rows(plan.samples), plan.batch_size));
    for (int epoch = 0; epoch < plan.epochs; ++epoch) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
        optimizer.step();
      }
    }
    return copies_of(net);
  }

  static void expect_close(const Tensors& actual, const Tensors& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-6)) << actual[i] << "\nand not\n"
                                                                    << expected[i];
    }
  }
};

TEST_F(AcceleratorOracle, TrainsAsOneProcessDoesWithAllSamplesOfAStep) {
  for (const std::int64_t samples : {1, 2, 29, 36}) {
    for (const std::int64_t batch_size : {1, 3}) {
      for (const int accumulated : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << samples << " samples, " << batch_size << " a batch, "
                                          << accumulated << " accumulated");
        const AcceleratorPlan plan{
            .samples = samples, .batch_size = batch_size, .accumulated = accumulated};
        const Tensors parameters = accelerated(plan);
        expect_close(parameters, by_one_process(plan));
        EXPECT_TRUE(same_bits_everywhere(parameters));
      }
    }
  }
}

TEST_F(AcceleratorOracle, ZeroGradMayStandBehindTheStep) {
  const AcceleratorPlan plan{.accumulated = 2};
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  torch::nn::Sequential net = make_tanh_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, torch::data::make_data_loader(sine_rows(plan.samples), plan.batch_size));
  for (int epoch = 0; epoch < plan.epochs; ++epoch) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      accelerator.backward(at::mse_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  expect_close(copies_of(net), by_one_process(plan));
}

TEST_F(AcceleratorOracle, SplitBatchesAreTheSameForAnyNumberOfRanks) {
  Accelerator accelerator({.split_batches = true});
  torch::nn::Sequential net = make_tanh_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, torch::data::make_data_loader(sine_rows(29), 5));
  EXPECT_EQ(loader.size(), 6);
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model(batch.data), batch.target));
    optimizer.step();
  }
  torch::nn::Sequential alone = make_tanh_net();
  torch::optim::SGD own(alone->parameters(), 0.1);
  DataLoader batches(sine_rows(29), {.batch_size = 5, .process_group = group_.new_group({0})});
  if (rank_ == 0) {
    for (auto& batch : batches) {
      own.zero_grad();
      at::mse_loss(alone->forward(batch.data), batch.target).backward();
      own.step();
    }
    expect_close(copies_of(net), copies_of(alone));
  }
}

TEST_F(AcceleratorTest, TwoModelsOfOneRankEndTheirEpochs) {
  if (world_size_ > 1) GTEST_SKIP() << "shown with one rank";
  Accelerator accelerator;
  torch::nn::Sequential first = make_tanh_net();
  torch::nn::Sequential second = make_tanh_net();
  torch::optim::SGD sgd(first->parameters(), 0.1);
  auto [model, other, optimizer, loader] =
      accelerator.prepare(first, second, sgd, torch::data::make_data_loader(sine_rows(29), 3));
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model(batch.data), other(batch.data)) +
                         at::mse_loss(model(batch.data), batch.target));
    optimizer.step();
  }
  EXPECT_EQ(accelerator.steps(), 10);
}

TEST_F(AcceleratorTest, GathersEachSampleOnceInTheOrderOfTheDataset) {
  for (const std::int64_t samples : {1, 7, 24, 29}) {
    Accelerator accelerator;
    const SineRows all(samples);
    auto loader =
        accelerator.prepare(torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
            sine_rows(samples), 3));
    Tensors parts;
    for (auto& batch : loader) parts.push_back(accelerator.gather_for_metrics(batch.target));
    EXPECT_TRUE(at::equal(at::cat(parts), all.targets)) << samples;
    for (auto& batch : loader) {
      const auto gather = [&, rows = batch.data.size(0)] {
        accelerator.gather_for_metrics(at::zeros(std::vector<std::int64_t>{rows + 1}));
      };
      EXPECT_SAYS(message_of<UsageError>(gather), "give a row for each sample");
      break;
    }
  }
}

TEST_F(AcceleratorTest, GathersAndReduces) {
  Accelerator accelerator;
  const at::Tensor ranks = at::arange(world_size_, at::kFloat);
  EXPECT_TRUE(at::equal(accelerator.gather(at::scalar_tensor(rank_, at::kFloat)), ranks));
  const at::Tensor own = at::full({2, 3}, rank_, at::kLong);
  EXPECT_TRUE(at::equal(accelerator.gather(own).select(1, 2),
                        at::arange(world_size_).repeat_interleave(2)));
  EXPECT_TRUE(at::equal(accelerator.reduce(own),
                        at::full({2, 3}, world_size_ * (world_size_ - 1) / 2, at::kLong)));
  EXPECT_TRUE(matches(accelerator.reduce(at::scalar_tensor(rank_, at::kFloat), ReduceOp::kAvg),
                      at::scalar_tensor((world_size_ - 1) / 2.0, at::kFloat)));
  EXPECT_TRUE(at::equal(accelerator.reduce(own, ReduceOp::kMax),
                        at::full({2, 3}, world_size_ - 1, at::kLong)));
  accelerator.wait_for_everyone();
  EXPECT_EQ(accelerator.num_processes(), world_size_);
  EXPECT_EQ(accelerator.is_main_process(), rank_ == 0);
}

}  // namespace
}  // namespace lockstep::testing
