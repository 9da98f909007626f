// logical_shards: the same bits on any number of ranks.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/adam.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/data/epoch_plan.h"
#include "lockstep/ddp/exchange/shard_sum.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "tests/ranks/sharded_run.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

/// A training whose loop a test gives.
struct ShardedLoop {
  explicit ShardedLoop(const AcceleratorOptions& options, std::int64_t samples = 32,
                       const MakeNet& make_net = dropout_net)
      : accelerator(options),
        net(make_net()),
        adam(make_adam(net)),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(adam)),
        loader(accelerator.make_data_loader(sine_rows(samples), {.batch_size = 2})) {}
  at::Tensor loss_of(const torch::data::Example<>& batch) {
    return at::mse_loss(model.forward(batch.data), batch.target);
  }
  void backward(const torch::data::Example<>& batch) {
    optimizer.zero_grad();
    accelerator.backward(loss_of(batch));
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  torch::optim::Adam adam;
  PreparedModel<torch::nn::SequentialImpl> model;
  PreparedOptimizer<torch::optim::Adam> optimizer;
  DataLoader<decltype(sine_rows(1))> loader;
};

class SameBits : public AcceleratorTest {};

TEST_F(SameBits, ATrainingHasTheBitsOfOneProcessThatAddsUpTheShards) {
  for (const int shards : {4, 5, 7, 8}) {
    // The last step of an epoch has full shards, smaller ones, or fewer samples than shards.
    for (const std::int64_t samples : {6 * shards, 41, 4 * shards + 3}) {
      SCOPED_TRACE(::testing::Message() << shards << " shards, " << samples << " samples");
      const ShardedRun run{.shards = shards, .samples = samples};
      expect_same_bits(by_ranks(run, {.logical_shards = shards}), by_one_process(run));
    }
  }
}

TEST_F(SameBits, StatisticsOfBatchNormAreWeightedMeansOverShards) {
  const ShardedRun run{.net = batch_norm_net, .shards = 4, .samples = 3 * 12 + 9, .batch_size = 3};
  expect_same_bits(by_ranks(run, {.logical_shards = 4}), by_one_process(run));
}

TEST_F(SameBits, LossesMayHaveWeights) {
  const ShardedRun run{.shards = 5, .samples = 23, .has_weights = true};
  expect_same_bits(by_ranks(run, {.logical_shards = 5}), by_one_process(run));
}

TEST_F(SameBits, GradientsMayBeCopiesAndTheBatchMayBeGivenInAll) {
  const ShardedRun run{.shards = 6, .samples = 29};
  AcceleratorOptions options{.logical_shards = 6, .ddp = {.gradient_as_bucket_view = false}};
  const Outcome expected = by_one_process(run);
  expect_same_bits(by_ranks(run, options), expected);
  options.split_batches = true;
  ShardedRun split = run;
  split.batch_size = run.batch_size * run.shards;
  expect_same_bits(by_ranks(split, options), expected);
}

TEST_F(SameBits, EachRankHasTheThreadsOfTheOption) {
  const int before = at::get_num_threads();
  {
    const Accelerator accelerator({.logical_shards = 4, .compute_threads = 3});
    EXPECT_EQ(at::get_num_threads(), 3);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST_F(SameBits, ANumberThatIsNoneSkipsTheStepOnAllRanks) {
  for (const int bad_shard : {0, 3}) {
    Accelerator accelerator({.logical_shards = 4, .non_finite = NonFinite::kSkip});
    torch::nn::Sequential net = dropout_net();
    auto adam = make_adam(net);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto loader = accelerator.make_data_loader(sine_rows(8), {.batch_size = 2});
    const Tensors before = copies_of(net);
    for (auto& batch : loader) {
      optimizer.zero_grad();
      at::Tensor loss = at::mse_loss(model.forward(batch.data), batch.target);
      if (loader.position()->shard() == bad_shard) {
        loss = loss * std::numeric_limits<double>::infinity();
      }
      accelerator.backward(loss);
      optimizer.step();
    }
    EXPECT_TRUE(optimizer.step_was_skipped());
    const Tensors after = copies_of(net);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i]));
  }
}

// Else the step behind the skipped one would begin with statistics from which none follow.
TEST_F(SameBits, BatchNormGoesOnBehindASkippedStep) {
  ShardedLoop loop({.logical_shards = 4, .non_finite = NonFinite::kSkip}, 24, batch_norm_net);
  Tensors at_first;
  for (const at::Tensor& buffer : loop.net->buffers()) at_first.push_back(buffer.clone());
  int steps = 0;
  for (auto& batch : loop.loader) {
    if (steps == 0 && loop.loader.position()->shard() == 2) {
      batch.data.fill_(std::numeric_limits<float>::quiet_NaN());
    }
    loop.backward(batch);
    loop.optimizer.step();
    if (!loop.accelerator.sync_gradients()) continue;
    EXPECT_EQ(loop.optimizer.step_was_skipped(), steps == 0);
    for (std::size_t i = 0; i < at_first.size(); ++i) {
      const at::Tensor buffer = loop.net->buffers()[i];
      const bool may_change = steps > 0 || !buffer.is_floating_point();
      EXPECT_EQ(at::equal(buffer, at_first[i]), !may_change) << buffer;
      EXPECT_TRUE(at::isfinite(buffer).all().item<bool>()) << buffer;
    }
    ++steps;
  }
  EXPECT_EQ(steps, 3);
}

TEST_F(SameBits, ALoopThatIsLeftWithinAStepLeavesNothingBehind) {
  const ShardedRun run{.shards = 8, .samples = 32, .epochs = 1};
  Accelerator accelerator({.logical_shards = 8});
  torch::nn::Sequential net = dropout_net();
  auto adam = make_adam(net);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader = accelerator.make_data_loader(sine_rows(run.samples), {.batch_size = 2});
  for (auto& batch : loader) {
    if (accelerator.sync_gradients()) break;  // A rank with one shard has made no pass.
    accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
  }
  loader.set_cursor({});
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
    optimizer.step();
  }
  expect_same_bits(outcome_of(net, {}), {by_one_process(run).state, {}});
}

TEST_F(SameBits, ASnapshotIsOfItsNumberOfShards) {
  const FolderOfRanks folder(group_, "shards-");
  const auto with_training = [&](const AcceleratorOptions& options, const auto& action) {
    AcceleratorOptions saved = options;
    saved.directory = folder.path();
    Accelerator accelerator(saved);
    torch::nn::Sequential net = dropout_net();
    auto adam = make_adam(net);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto loader = accelerator.make_data_loader(sine_rows(16), {.batch_size = 2});
    action(accelerator);
  };
  const auto load = [](Accelerator& accelerator) { accelerator.load_state(); };
  with_training({.logical_shards = 5}, [](Accelerator& accelerator) { accelerator.save_state(); });
  group_.barrier();
  with_training({.logical_shards = 5}, load);
  const auto message = [&](const AcceleratorOptions& options) {
    return message_of<UsageError>([&] { with_training(options, load); });
  };
  EXPECT_SAYS(message({.logical_shards = 4}), "it was saved with logical_shards=5");
  EXPECT_SAYS(message({}), "it was saved with logical_shards=5");
  EXPECT_SAYS(message({.logical_shards = 5, .compute_threads = 2}),
              "it was saved with compute_threads=1");
}

TEST_F(SameBits, WhatIsNotSupportedIsRefused) {
  const auto message = [](const AcceleratorOptions& options) {
    return message_of<UsageError>([&] { const Accelerator accelerator(options); });
  };
  EXPECT_SAYS(message({.gradient_accumulation_steps = 3, .logical_shards = 4}),
              "set logical_shards=12");
  EXPECT_SAYS(
      message({.logical_shards = 4, .ddp = {.comm_hook = std::make_shared<AllReduceHook>()}}),
      "comm_hook");
  EXPECT_SAYS(message({.logical_shards = 4, .ddp = {.exchange_dtype = at::kBFloat16}}),
              "exchange_dtype is not supported");
  EXPECT_SAYS(message({.logical_shards = -1}), "logical_shards is -1");
  EXPECT_SAYS(message({.logical_shards = 4, .compute_threads = 0}), "compute_threads is 0");
}

TEST_F(SameBits, MoreRanksThanShardsHaveTheSameBits) {
  const ShardedRun run{.net = batch_norm_net, .shards = 1, .samples = 14, .batch_size = 4};
  expect_same_bits(by_ranks(run, {.logical_shards = 1}), by_one_process(run));
}

TEST_F(SameBits, WithinAStepNothingIsSaved) {
  const FolderOfRanks folder(group_, "within-");
  ShardedLoop loop({.logical_shards = 4, .directory = folder.path()});
  for (auto& batch : loop.loader) {
    const auto save = [&] { loop.accelerator.save_state(); };
    EXPECT_SAYS(message_of<UsageError>(save), "gradients are being accumulated");
    loop.backward(batch);
    if (!loop.accelerator.sync_gradients()) {
      EXPECT_SAYS(message_of<UsageError>(save), "gradients are being accumulated");
    }
    loop.optimizer.step();
    if (loop.accelerator.sync_gradients()) save();
  }
}

TEST_F(SameBits, AStepNeedsTheSumOfAllShards) {
  for (const bool uses_ddp : {false, true}) {
    ShardedLoop loop({.logical_shards = world_size_});
    EXPECT_SAYS(message_of<UsageError>([&] {
                  for (auto& batch : loop.loader) {
                    const at::Tensor loss = loop.loss_of(batch);
                    if (uses_ddp) {
                      loop.model.ddp().backward(loss);
                    } else {
                      loss.backward();
                    }
                    EXPECT_SAYS(message_of<UsageError>([&] {
                                  loop.accelerator.clip_grad_norm_(loop.model.parameters(), 1);
                                }),
                                "clip_grad_norm_");
                    loop.optimizer.step();
                  }
                }),
                "in place of loss.backward()");
  }
}

TEST_F(SameBits, ABatchWithoutABackwardIsRefused) {
  enum class Instead { kContinue, kOwnBackward, kDdpBackward };
  for (const int shards : {world_size_, 2 * world_size_}) {
    for (const auto instead : {Instead::kContinue, Instead::kOwnBackward, Instead::kDdpBackward}) {
      SCOPED_TRACE(::testing::Message() << shards << " shards, " << static_cast<int>(instead));
      ShardedLoop loop({.logical_shards = shards});
      int batches = 0;
      EXPECT_SAYS(message_of<UsageError>([&] {
                    for (auto& batch : loop.loader) {
                      if (++batches > 1 && loop.accelerator.sync_gradients()) {
                        if (instead == Instead::kContinue) continue;
                        loop.optimizer.zero_grad();
                        const at::Tensor loss = loop.loss_of(batch);
                        if (instead == Instead::kOwnBackward) {
                          loss.backward();
                        } else {
                          loop.model.ddp().backward(loss);
                        }
                        continue;
                      }
                      loop.backward(batch);
                      loop.optimizer.step();
                    }
                  }),
                  "a batch had no backward()");
    }
  }
}

TEST_F(SameBits, AnOptimizerWithParametersThatAreNotPreparedIsRefused) {
  Accelerator accelerator({.logical_shards = 2 * world_size_});
  torch::nn::Linear net(4, 1);
  torch::nn::Linear criterion(1, 1);
  std::vector<at::Tensor> all = net->parameters();
  for (const at::Tensor& parameter : criterion->parameters()) all.push_back(parameter);
  torch::optim::Adam adam(all, torch::optim::AdamOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader = accelerator.make_data_loader(sine_rows(32), {.batch_size = 2});
  EXPECT_SAYS(message_of<UsageError>([&] {
                for (auto& batch : loader) {
                  optimizer.zero_grad();
                  const at::Tensor output = criterion->forward(model(batch.data));
                  accelerator.backward(at::mse_loss(output, batch.target));
                  optimizer.step();
                }
              }),
              "a parameter of sizes [1, 1] has a gradient that is not summed");
}

TEST_F(SameBits, ANormWithGradientsThatAreNotSummedIsRefused) {
  ShardedLoop loop({.logical_shards = 2 * world_size_}, 16 * world_size_);
  const at::Tensor other = at::ones({3}, at::requires_grad());
  std::vector<at::Tensor> all = loop.net->parameters();
  all.push_back(other);
  EXPECT_SAYS(message_of<UsageError>([&] {
                for (auto& batch : loop.loader) {
                  loop.backward(batch);
                  other.mutable_grad() = at::ones({3});
                  loop.accelerator.clip_grad_norm_(all, 1);
                }
              }),
              "clip_grad_norm_: with logical_shards a parameter of sizes [3] has a gradient");
}

TEST_F(SameBits, AModelMayBePreparedBetweenSteps) {
  ShardedLoop loop({.logical_shards = 2 * world_size_}, 16 * world_size_);
  torch::nn::Sequential other = dropout_net();
  auto second = make_adam(other);
  std::optional<PreparedModel<torch::nn::SequentialImpl>> model;
  std::optional<PreparedOptimizer<torch::optim::Adam>> optimizer;
  for (auto& batch : loop.loader) {
    loop.optimizer.zero_grad();
    at::Tensor output = loop.model.forward(batch.data);
    if (model) {
      optimizer->zero_grad();
      output = output + model->forward(batch.data);
    }
    loop.accelerator.backward(at::mse_loss(output, batch.target));
    loop.optimizer.step();
    if (optimizer) optimizer->step();
    if (loop.accelerator.sync_gradients() && !model) {
      model.emplace(loop.accelerator.prepare(other));
      optimizer.emplace(loop.accelerator.prepare(second));
    }
  }
  for (const auto& net : {loop.net, other}) {
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor of_rank_0 = parameter.detach().clone();
      group_.broadcast(of_rank_0, 0);
      EXPECT_TRUE(at::equal(parameter, of_rank_0));
    }
  }
  EXPECT_FALSE(at::equal(other->parameters()[0], dropout_net()->parameters()[0]));
}

TEST_F(SameBits, CollectivesWithinAStepAreRefused) {
  ShardedLoop loop({.logical_shards = 2 * world_size_});
  Accelerator& accelerator = loop.accelerator;
  for (auto& batch : loop.loader) {
    loop.backward(batch);
    loop.optimizer.step();
    const at::Tensor one = at::ones({});
    if (accelerator.sync_gradients()) {
      EXPECT_EQ(accelerator.reduce(one).item<double>(), world_size_);
      EXPECT_EQ(accelerator.gather(one).numel(), world_size_);
      accelerator.wait_for_everyone();
      EXPECT_EQ(accelerator.evaluate([] { return 7; }), 7);
    } else {
      constexpr const char* kReason = "different numbers of shards";
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.reduce(one); }), kReason);
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.gather(one); }), kReason);
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.wait_for_everyone(); }), kReason);
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.evaluate([] { return 7; }); }), kReason);
    }
  }
}

TEST_F(SameBits, LoadersOfOtherNumbersOfShardsAreRefused) {
  Accelerator without;
  EXPECT_SAYS(message_of<UsageError>([&] {
                without.prepare(DataLoader(sine_rows(32), {.batch_size = 2, .logical_shards = 8}));
              }),
              "logical_shards=8");
  EXPECT_SAYS(message_of<UsageError>([&] {
                without.make_data_loader(sine_rows(32), {.batch_size = 2, .logical_shards = 8});
              }),
              "logical_shards=8");
  ShardedLoop loop({.logical_shards = 4});
  EXPECT_SAYS(message_of<UsageError>([&] {
                loop.accelerator.make_data_loader(sine_rows(32),
                                                  {.batch_size = 2, .logical_shards = 4});
              }),
              "a second loader 0");
  EXPECT_SAYS(
      message_of<UsageError>([&] { const auto own = loop.accelerator.no_sync(loop.model); }),
      "no_sync: not supported");
}

TEST_F(SameBits, ALoopThatIsLeftWithinAStepRestoresBuffers) {
  ShardedLoop loop({.logical_shards = 2 * world_size_}, 8 * world_size_, batch_norm_net);
  Tensors before;
  for (const at::Tensor& buffer : loop.net->buffers()) before.push_back(buffer.clone());
  for (auto& batch : loop.loader) {
    loop.loss_of(batch);
    break;
  }
  loop.accelerator.wait_for_everyone();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(loop.net->buffers()[i], before[i])) << i;
  }
}

/// Keeps the least value, and counts in `count`.
struct LeastImpl : torch::nn::Module {
  explicit LeastImpl(double first)
      : least(register_buffer("least", at::full({}, first))),
        count(register_buffer("count", at::zeros({}, at::kLong))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::NoGradGuard no_grad;
    least.copy_(at::minimum(least, input.min()));
    if (counts) count.add_(1);
    return input;
  }
  at::Tensor least;
  at::Tensor count;
  bool counts = true;
};

TEST_F(SameBits, BuffersThatHaveNoMeanAreRefused) {
  const auto message = [&](double first, bool counts_in_shard_0) {
    auto least = std::make_shared<LeastImpl>(first);
    ShardedLoop loop({.logical_shards = world_size_ + 1}, 32, [&] {
      torch::nn::Sequential net(torch::nn::Linear(4, 1));
      net->push_back("least", least);
      return net;
    });
    return message_of<UsageError>([&] {
      for (auto& batch : loop.loader) {
        least->counts = counts_in_shard_0 || loop.loader.position()->shard() > 0;
        loop.backward(batch);
        loop.optimizer.step();
      }
    });
  };
  EXPECT_SAYS(message(std::numeric_limits<double>::infinity(), true), "is not finite");
  EXPECT_SAYS(message(5, false), "other shards than 0");
}

TEST_F(SameBits, ASnapshotOfOtherKernelsIsResumedWithAWarning) {
  const FolderOfRanks folder(group_, "kernels-");
  const AcceleratorOptions options{.logical_shards = 4, .directory = folder.path()};
  double loss = 0;
  {
    ShardedLoop loop(options);
    for (auto& batch : loop.loader) {
      loop.backward(batch);
      loop.optimizer.step();
    }
    loss = loop.accelerator.loss();
    loop.accelerator.save_state();
  }
  const auto warnings = [&] {
    ShardedLoop loop(options);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(loop.accelerator.load_state());
    EXPECT_EQ(loop.accelerator.loss(), loss);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warnings().find("kernels may round differently"), std::string::npos);
  const bool uses_mkldnn = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(!uses_mkldnn);
  const std::string text = warnings();
  at::globalContext().setUserEnabledMkldnn(uses_mkldnn);
  if (rank_ == 0) {
    EXPECT_NE(text.find(concat("saved with mkldnn=", uses_mkldnn)), std::string::npos) << text;
    EXPECT_NE(text.find(concat(", now mkldnn=", !uses_mkldnn)), std::string::npos) << text;
  }
}

TEST_F(SameBits, RanksWhoseKernelsMayRoundOtherwiseAreRefused) {
  NEEDS_RANKS(2);
  EXPECT_SAYS(
      message_of<UsageError>([&] {
        const Accelerator accelerator({.logical_shards = 4, .compute_threads = rank_ == 0 ? 1 : 2});
      }),
      "compute_threads=1");
}

TEST_F(SameBits, RanksWhoseKernelsMayRoundOtherwiseAreWarnedOfWhereTheyAreAllowed) {
  NEEDS_RANKS(2);
  ::testing::internal::CaptureStderr();
  {
    const Accelerator accelerator({.logical_shards = 4,
                                   .compute_threads = rank_ == 0 ? 1 : 2,
                                   .allow_kernel_differences = true});
    EXPECT_EQ(accelerator.num_processes(), world_size_);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("rank 0: compute_threads=1, this rank") != std::string::npos, rank_ != 0)
      << said;
}

TEST_F(SameBits, SyncBatchNormOnFewerRanksAndASecondLossAreRefused) {
  Accelerator accelerator({.logical_shards = world_size_ + 1});
  torch::nn::Sequential net(torch::nn::Linear(4, 5), SyncBatchNorm(5), torch::nn::Linear(5, 1));
  auto adam = make_adam(net);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader = accelerator.make_data_loader(sine_rows(16), {.batch_size = 2});
  EXPECT_SAYS(message_of<UsageError>([&] { loader.begin(); }),
              concat("there are ", world_size_, " ranks for ", world_size_ + 1, " shards"));

  Accelerator other({.logical_shards = world_size_});
  torch::nn::Sequential plain = dropout_net();
  auto second = make_adam(plain);
  auto [replica, steps] = other.prepare(plain, second);
  auto batches = other.make_data_loader(sine_rows(2 * world_size_), {.batch_size = 2});
  EXPECT_SAYS(message_of<UsageError>([&] {
                for (auto& batch : batches) {
                  steps.zero_grad();
                  other.backward(at::mse_loss(replica(batch.data), batch.target));
                  other.backward(at::mse_loss(replica(batch.data), batch.target));
                }
              }),
              "each batch has one loss");
}

TEST_F(SameBits, AWeightThatIsNoneIsRefused) {
  ShardedLoop loop({.logical_shards = world_size_});
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_SAYS(message_of<UsageError>([&] {
                  for (auto& batch : loop.loader) {
                    loop.accelerator.backward(loop.loss_of(batch), weight);
                  }
                }),
                "it must be 0 or more, and finite");
  }
}

TEST_F(SameBits, GradientsOfTheStepBeforeAreRefused) {
  Accelerator accelerator({.logical_shards = 4});
  torch::nn::Sequential net = dropout_net();
  auto adam = make_adam(net);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader = accelerator.make_data_loader(sine_rows(24), {.batch_size = 2});
  EXPECT_SAYS(message_of<UsageError>([&] {
                for (auto& batch : loader) {
                  accelerator.backward(at::mse_loss(model(batch.data), batch.target));
                  optimizer.step();
                }
              }),
              "call zero_grad()");
}

/// The exchange alone.
class ShardSums : public Conformance {
 protected:
  // Of a shard: a formula whose sums round.
  static at::Tensor value_of(int shard, std::int64_t numel, at::ScalarType dtype) {
    return ((at::arange(numel, at::kDouble) * 0.37 + shard * 1.7).sin() * (1 + shard)).to(dtype);
  }
};

TEST_F(ShardSums, HaveTheBitsOfTheTree) {
  for (const int shards : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    for (const std::int64_t numel : {0, 1, 17, 1009, 70'001}) {
      SCOPED_TRACE(::testing::Message() << shards << " shards of " << numel << " elements");
      const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16};
      ShardSum::Layout layout;
      for (const auto dtype : dtypes) layout.emplace_back(dtype, numel);
      ShardSum sum(group_, shards, layout);
      const ShardBlock own = shards_of_rank(shards, world_size_, rank_);
      for (int round = 0; round < 2; ++round) {
        for (int shard = own.begin; shard < own.end; ++shard) {
          const auto* const sibling = round == 0 ? nullptr : sum.left_sibling(shard);
          const auto& flats = sibling != nullptr ? *sibling : sum.next_value();
          for (std::size_t i = 0; i < dtypes.size(); ++i) {
            const at::Tensor values = value_of(shard + round, numel, dtypes[i]);
            const at::Tensor flat = flats[i].narrow(0, 0, numel);
            flat.copy_(sibling != nullptr ? flat + values : values);
          }
          sum.push(shard);
        }
        const auto& sums = sum.finish();
        for (std::size_t i = 0; i < dtypes.size(); ++i) {
          Tensors values;
          for (int shard = 0; shard < shards; ++shard) {
            values.push_back(value_of(shard + round, numel, dtypes[i]));
          }
          ASSERT_TRUE(at::equal(sums[i], tree_sum(values))) << dtypes[i];
        }
      }
    }
  }
}

TEST_F(ShardSums, HaveTheBitsOfTheTreeInSeveralMessages) {
  constexpr int kShards = 7;
  constexpr std::int64_t kNumel = 2'300'003;
  ShardSum sum(group_, kShards, {{at::kFloat, kNumel}});
  const ShardBlock own = shards_of_rank(kShards, world_size_, rank_);
  Tensors values;
  for (int shard = 0; shard < kShards; ++shard) {
    values.push_back(value_of(shard, kNumel, at::kFloat));
    if (shard < own.begin || shard >= own.end) continue;
    sum.next_value().front().narrow(0, 0, kNumel).copy_(values.back());
    sum.push(shard);
  }
  EXPECT_TRUE(at::equal(sum.finish().front(), tree_sum(values)));
}

TEST_F(ShardSums, WhatIsGivenUpDoesNotCount) {
  constexpr int kShards = 8;
  ShardSum sum(group_, kShards, {{at::kFloat, 5}});
  const ShardBlock own = shards_of_rank(kShards, world_size_, rank_);
  sum.next_value().front().fill_(1e9);
  sum.push(own.begin);
  sum.clear();
  for (int shard = own.begin; shard < own.end; ++shard) {
    sum.next_value().front().narrow(0, 0, 5).fill_(1);
    sum.push(shard);
  }
  EXPECT_TRUE(at::equal(sum.finish().front(), at::full({5}, 8.0F)));
}

}  // namespace
}  // namespace lockstep::testing
