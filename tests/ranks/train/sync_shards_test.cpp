// SyncBatchNorm with logical shards, which are as many as ranks: PyTorch's rule, the statistics of
// the whole batch, along the tree.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/nn/internal/batch_norm_exchange.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/train/logical_shards.h"
#include "tests/ranks/sharded_run.h"

namespace lockstep::testing {
namespace {

class SyncedShards : public AcceleratorTest {
 protected:
  static constexpr double kRate = 0.05;
  static constexpr int kEpochs = 2;

  template <class Norm>
  static torch::nn::Sequential net_with() {
    torch::nn::Sequential net(torch::nn::Linear(4, 5), Norm(5), torch::nn::Tanh(),
                              torch::nn::Linear(5, 1));
    fill(net);
    return net;
  }
  // A step has all of its samples at once; the last one of an epoch has fewer.
  std::int64_t samples() const { return 3 * 3 * world_size_ + 2 * world_size_ + 1; }

  static Outcome by_shards(torch::nn::Sequential net, std::int64_t samples, int shards,
                           bool one_copy = false) {
    Accelerator accelerator({.logical_shards = shards, .one_copy_per_machine = one_copy});
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto loader = accelerator.make_data_loader(sine_rows(samples), {.batch_size = 3});
    std::vector<double> losses;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (auto& batch : loader) {
        optimizer.zero_grad();
        accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
        optimizer.step();
        losses.push_back(accelerator.loss());
      }
    }
    return outcome_of(net, std::move(losses));
  }

  static Outcome by_whole_batches(torch::nn::Sequential net, std::int64_t samples, int shards) {
    const SineRows rows(samples);
    torch::optim::SGD sgd(net->parameters(), kRate);
    std::vector<double> losses;
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      EpochOrder order(samples, /*shuffle=*/true);
      order.set_epoch(0, epoch);
      const EpochPlan plan({.dataset_size = samples, .batch_size = 3 * shards}, {.epoch = epoch},
                           shards);
      for (std::int64_t number = 0; number < plan.steps(); ++number) {
        std::vector<std::int64_t> chosen;
        for (const std::size_t one : order.samples(plan.step(number))) {
          chosen.push_back(static_cast<std::int64_t>(one));
        }
        const at::Tensor indices = at::tensor(chosen);
        sgd.zero_grad();
        const at::Tensor loss = at::mse_loss(net->forward(rows.inputs.index_select(0, indices)),
                                             rows.targets.index_select(0, indices));
        loss.backward();
        sgd.step();
        losses.push_back(loss.item<double>());
      }
    }
    return outcome_of(net, std::move(losses));
  }

  static void expect_near(const Outcome& actual, const Outcome& expected) {
    ASSERT_EQ(actual.state.size(), expected.state.size());
    for (std::size_t i = 0; i < actual.state.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual.state[i], expected.state[i], 1e-6, 1e-6))
          << i << " by " << (actual.state[i] - expected.state[i]).abs().max();
    }
    EXPECT_TRUE(at::allclose(at::tensor(actual.losses), at::tensor(expected.losses), 1e-6, 1e-6));
  }
};

TEST_F(SyncedShards, HaveTheStatisticsOfTheWholeBatch) {
  const Outcome expected =
      by_whole_batches(net_with<torch::nn::BatchNorm1d>(), samples(), world_size_);
  const Outcome actual = by_shards(net_with<SyncBatchNorm>(), samples(), world_size_);
  expect_near(actual, expected);
  torch::nn::Sequential converted = net_with<torch::nn::BatchNorm1d>();
  convert_sync_batchnorm(*converted);
  expect_same_bits(by_shards(converted, samples(), world_size_), actual);
  EXPECT_TRUE(same_bits_everywhere(actual.state));
  if (world_size_ == 1 || !group_.shares_memory()) return;
  expect_same_bits(by_shards(net_with<SyncBatchNorm>(), samples(), world_size_, true), actual);
}

// The others would wait for it in the backward pass.
TEST_F(SyncedShards, AShardWithoutSamplesTakesPart) {
  NEEDS_RANKS(2);
  const std::int64_t samples = 3 * world_size_ + world_size_ - 1;
  const Outcome first = by_shards(net_with<SyncBatchNorm>(), samples, world_size_);
  expect_same_bits(by_shards(net_with<SyncBatchNorm>(), samples, world_size_), first);
  EXPECT_TRUE(same_bits_everywhere(first.state));
  for (const double loss : first.losses) EXPECT_TRUE(std::isfinite(loss));
}

TEST_F(SyncedShards, AShardWithoutSamplesTakesPartInALoopOfOnesOwn) {
  torch::nn::Sequential net = net_with<SyncBatchNorm>();
  LogicalShards shards({net.ptr()}, {.shards = world_size_, .process_group = group_});
  EXPECT_TRUE(shards.needs_every_backward());
  const int without = world_size_ - 1;
  shards.begin_shard(0, rank_);
  const at::Tensor inputs = (at::arange(12.0).view({3, 4}) + rank_).sin();
  const bool counts = rank_ != without || without == 0;
  shards.backward(net->forward(inputs).square().mean(),
                  {.fraction_of_step = counts ? 1.0 / std::max(without, 1) : 0});
  shards.end_step(0);
  Tensors gradients;
  for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  EXPECT_TRUE(same_bits_everywhere(gradients));
  // Its loss does not count, its batch counts in the statistics.
  torch::nn::Sequential whole = net_with<torch::nn::BatchNorm1d>();
  Tensors all;
  for (int rank = 0; rank < world_size_; ++rank) {
    all.push_back((at::arange(12.0).view({3, 4}) + rank).sin());
  }
  whole->forward(at::cat(all)).narrow(0, 0, 3 * std::max(without, 1)).square().mean().backward();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], whole->parameters()[i].grad(), 1e-5, 1e-6)) << i;
  }
}

TEST_F(SyncedShards, SumsAreAlongTheTree) {
  NEEDS_RANKS(2);
  const auto layers = layer_group(group_);
  const SyncLayer layer{.layers = layers, .number = layers->number_layer(), .name = "tree"};
  Tensors of_ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    of_ranks.push_back((at::arange(1009, at::kDouble) * 0.37 + rank * 1.7).sin() * (1 + rank));
  }
  const at::Tensor sum = sum_over_ranks(layer, of_ranks[static_cast<std::size_t>(rank_)]);
  EXPECT_TRUE(at::equal(sum, tree_sum(of_ranks)));
}

}  // namespace
}  // namespace lockstep::testing
