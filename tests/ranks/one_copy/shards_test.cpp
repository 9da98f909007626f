// One copy per machine with logical shards: the bits of replicas, with any optimizer, and whatever
// is done with the sum before step().
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/logical_shards.h"
#include "tests/ranks/one_copy/fixture.h"
#include "tests/ranks/sharded_run.h"

namespace lockstep::testing {
namespace {

/// What a loop does between backward() and step().
struct BeforeStep {
  double clip_norm = 0;
  double norm_type = 2;
  double clip_value = 0;
  int infinite_shard = -1;  ///< Of the second step.
};

class OneCopyOfShards : public OneCopy {
 protected:
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;
  template <class Optimizer, class Options>
  static MakeOptimizer with(const Options& options) {
    return [options](const Tensors& parameters) {
      return std::make_unique<Optimizer>(parameters, options);
    };
  }

  // With a parameter that autograd leaves where it is, and small ones.
  static torch::nn::Sequential make_net() {
    torch::nn::Sequential net(torch::nn::Linear(4, 200), torch::nn::Tanh(), torch::nn::Dropout(0.2),
                              torch::nn::Linear(200, 400), torch::nn::Tanh(),
                              torch::nn::Linear(400, 1));
    fill(net);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.mul_(0.2);
    return net;
  }

  struct Training {
    Tensors parameters;
    std::vector<double> norms;
    std::vector<double> losses;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    torch::nn::Sequential net = make_net();
  };

  static Training train(const AcceleratorOptions& options, const MakeOptimizer& make,
                        const BeforeStep& before) {
    Training training;
    Accelerator accelerator(options);
    training.optimizer = make(training.net->parameters());
    auto [model, optimizer] = accelerator.prepare(training.net, *training.optimizer);
    auto loader = accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
    EXPECT_EQ(ModelCopy::find(training.net->parameters()[0]).copy != nullptr,
              options.one_copy_per_machine);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) {
        optimizer.zero_grad();
        at::Tensor loss = at::mse_loss(model.forward(batch.data), batch.target);
        if (accelerator.steps() == 1 && loader.position()->shard() == before.infinite_shard) {
          loss = loss * std::numeric_limits<double>::infinity();
        }
        accelerator.backward(loss);
        if (before.clip_norm > 0) {
          training.norms.push_back(
              accelerator.clip_grad_norm_(model.parameters(), before.clip_norm, before.norm_type));
        }
        if (before.clip_value > 0) {
          accelerator.clip_grad_value_(model.parameters(), before.clip_value);
        }
        optimizer.step();
        if (accelerator.sync_gradients()) training.losses.push_back(accelerator.loss());
      }
    }
    training.parameters = copies_of(training.net);
    return training;
  }

  void expect_bits_of_replicas(AcceleratorOptions options, const MakeOptimizer& make,
                               const BeforeStep& before = {}) const {
    for (const int shards : {1, 4, 5, 7}) {
      SCOPED_TRACE(::testing::Message() << shards << " shards");
      options.logical_shards = shards;
      options.one_copy_per_machine = false;
      const Training expected = train(options, make, before);
      options.one_copy_per_machine = true;
      const Training actual = train(options, make, before);
      expect_same_bits(actual.parameters, expected.parameters);
      // A float16 step may overflow, with a norm that is no number.
      EXPECT_TRUE(same_bits(at::tensor(actual.norms), at::tensor(expected.norms)));
      EXPECT_TRUE(same_bits(at::tensor(actual.losses), at::tensor(expected.losses)));
      expect_same_state(*actual.optimizer, *expected.optimizer);
      EXPECT_TRUE(same_bits_everywhere(actual.parameters));
    }
  }
};

TEST_F(OneCopyOfShards, HasTheBitsOfReplicas) {
  NEEDS_COPIES();
  expect_bits_of_replicas({}, with<AdamW>(AdamWOptions{.lr = 0.02, .amsgrad = true}));
  expect_bits_of_replicas({}, with<SGD>(SGDOptions{.lr = 0.002, .momentum = 0.5}));
  expect_bits_of_replicas({}, with<LAMB>(LAMBOptions{.lr = 0.02}));
  expect_bits_of_replicas({}, with<torch::optim::Adam>(torch::optim::AdamOptions(0.02)));
}

TEST_F(OneCopyOfShards, ClipsByTheNormOfReplicas) {
  NEEDS_COPIES();
  const MakeOptimizer adamw = with<AdamW>(AdamWOptions{.lr = 0.02});
  expect_bits_of_replicas({}, adamw, {.clip_norm = 1e-2});
  expect_bits_of_replicas({}, adamw, {.clip_norm = 1e-2, .norm_type = 1});
  expect_bits_of_replicas({}, adamw, {.clip_value = 1e-3});
}

TEST_F(OneCopyOfShards, InMixedPrecision) {
  NEEDS_COPIES();
  const MakeOptimizer adamw = with<AdamW>(AdamWOptions{.lr = 0.02});
  expect_bits_of_replicas({.precision = Precision::kFloat16}, adamw, {.clip_norm = 1e-2});
  expect_bits_of_replicas({.precision = Precision::kBFloat16},
                          with<torch::optim::Adam>(torch::optim::AdamOptions(0.02)));
}

TEST_F(OneCopyOfShards, LeavesOutStepsThatAreNotFinite) {
  NEEDS_COPIES();
  const MakeOptimizer adamw = with<AdamW>(AdamWOptions{.lr = 0.02});
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    expect_bits_of_replicas({.precision = precision, .non_finite = NonFinite::kSkip}, adamw,
                            {.infinite_shard = 0});
  }
}

/// A loop of the program's own, with a wrapped module.
class LoopOfOneCopy : public OneCopyOfShards {
 protected:
  static constexpr int kShards = 5;

  struct Loop {
    Loop(const ProcessGroup& group, bool one_copy)
        : model(make_net().ptr(), {.process_group = group, .one_copy_per_machine = one_copy}),
          optimizer(model->parameters(), {.lr = 0.02}),
          own_gradients(model.no_sync()),
          shards(std::in_place, std::vector<std::shared_ptr<torch::nn::Module>>{model.module()},
                 LogicalShardsOptions{.shards = kShards, .process_group = group}) {}

    void sum_gradients(std::int64_t step) {
      optimizer.zero_grad();
      for (const int shard : shards->local_shards()) {
        shards->begin_shard(step, shard);
        const at::Tensor inputs = (at::arange(12.0).view({3, 4}) + shard).sin();
        shards->backward(model(inputs).square().mean(), {.fraction_of_step = 1.0 / kShards});
      }
      shards->end_step(step);
    }

    DistributedDataParallel<torch::nn::SequentialImpl> model;
    AdamW optimizer;
    NoSyncGuard own_gradients;
    std::optional<LogicalShards> shards;
  };
};

TEST_F(LoopOfOneCopy, HasTheSumInItsGradients) {
  NEEDS_COPIES();
  Loop loop(group_, true);
  Loop replicas(group_, false);
  for (std::int64_t step = 0; step < 3; ++step) {
    loop.sum_gradients(step);
    replicas.sum_gradients(step);
    expect_same_bits(loop.model.averaged_gradients(), replicas.model.averaged_gradients());
    for (std::size_t i = 0; i < loop.model->parameters().size(); ++i) {
      EXPECT_TRUE(
          same_bits(loop.model->parameters()[i].grad(), replicas.model->parameters()[i].grad()));
    }
    // What the program makes of the sum on all ranks counts.
    for (Loop* const one : {&loop, &replicas}) {
      const at::NoGradGuard no_grad;
      Tensors parameters = one->model->parameters();
      parameters[0].mutable_grad().mul_(0.5);
      parameters[1].mutable_grad() = parameters[1].grad() * 2;
      const at::Tensor transposed = at::empty_strided({400, 200}, {1, 400});
      parameters[2].mutable_grad() = transposed.copy_(parameters[2].grad());
      parameters[3].mutable_grad().reset();
      one->optimizer.step();
      one->optimizer.step();  // As with replicas the sum is still there.
    }
    expect_same_bits(loop.model->parameters(), replicas.model->parameters());
  }
}

TEST_F(LoopOfOneCopy, AGradientBehindTheSumIsRefused) {
  NEEDS_COPIES();
  Loop loop(group_, true);
  loop.sum_gradients(0);
  loop.model->parameters()[1].sum().backward();
  EXPECT_SAYS(message_of<UsageError>([&] { loop.optimizer.step(); }),
              "the gradient of '0.bias' is this rank's alone");
}

TEST_F(LoopOfOneCopy, ASumThatOneRankHasGivenUpIsRefusedOnAll) {
  NEEDS_COPIES();
  Loop loop(group_, true);
  loop.sum_gradients(0);
  if (rank_ == 1) loop.model->parameters()[1].mutable_grad().reset();
  EXPECT_SAYS(message_of<UsageError>([&] { loop.optimizer.step(); }),
              "the gradient of '0.bias' was given up on some ranks");
  loop.sum_gradients(1);
  loop.optimizer.step();
  EXPECT_TRUE(same_bits_everywhere(loop.model->parameters()));
}

TEST_F(LoopOfOneCopy, ASumThatRanksChangeByOtherValuesIsRefusedOnAll) {
  NEEDS_COPIES();
  Loop loop(group_, true);
  const std::function<void(at::Tensor&)> changes[] = {
      [&](at::Tensor& sum) { sum.mul_(rank_ == 0 ? 0.5 : 0.25); },
      [&](at::Tensor& sum) { sum = sum * (rank_ == 0 ? 0.5 : 0.25); }};
  for (int step = 0; const auto& change : changes) {
    const at::NoGradGuard no_grad;
    {
      const at::AutoGradMode grad(true);
      loop.sum_gradients(step++);
    }
    change(loop.model->parameters()[1].mutable_grad());
    EXPECT_SAYS(message_of<UsageError>([&] { loop.optimizer.step(); }),
                "clipped or unscaled by other values on rank");
  }
  loop.sum_gradients(2);
  loop.optimizer.step();
  EXPECT_TRUE(same_bits_everywhere(loop.model->parameters()));
}

TEST_F(LoopOfOneCopy, AGradientOfAnotherShapeIsRefused) {
  NEEDS_COPIES();
  Loop loop(group_, true);
  loop.sum_gradients(0);
  loop.model->parameters()[0].mutable_grad() = loop.model->parameters()[0].grad().to_sparse();
  EXPECT_SAYS(message_of<UsageError>([&] { loop.optimizer.step(); }), "is not dense");
}

TEST_F(LoopOfOneCopy, WithoutShardsRanksAverageAgain) {
  NEEDS_COPIES();
  Tensors ends[2];
  for (const bool one_copy : {true, false}) {
    DistributedDataParallel<torch::nn::SequentialImpl> model(
        make_net().ptr(), {.process_group = group_, .one_copy_per_machine = one_copy});
    AdamW optimizer(model->parameters(), {.lr = 0.02});
    {
      const NoSyncGuard own_gradients = model.no_sync();
      LogicalShards shards({model.module()}, {.shards = 1, .process_group = group_});
      for (const int shard : shards.local_shards()) {
        shards.begin_shard(0, shard);
        shards.backward(model(at::ones({3, 4})).mean(), {});
      }
      shards.end_step(0);
      optimizer.step();
    }
    optimizer.zero_grad();
    model(at::ones({3, 4}) * (rank_ + 1)).mean().backward();
    optimizer.step();
    ends[one_copy ? 1 : 0] = copies_of(torch::nn::Sequential(model.module()));
  }
  expect_same_bits(ends[1], ends[0]);
}

}  // namespace
}  // namespace lockstep::testing
