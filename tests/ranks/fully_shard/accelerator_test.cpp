// Strategy::kFullyShard of Accelerator and Trainer: all has the bits of DistributedDataParallel.
#include <limits>
#include <string>
#include <utility>

#include <torch/data/dataloader.h>
#include <torch/data/samplers/sequential.h>

#include "tests/ranks/fully_shard/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(FullyShardAccelerator, HasTheBitsOfReplicas) {
  expect_bits_of_replicas({});
  expect_bits_of_replicas({.split_batches = true});
  expect_bits_of_replicas({.gradient_accumulation_steps = 3});
}

TEST_F(FullyShardAccelerator, InMixedPrecision) {
  expect_bits_of_replicas({.precision = Precision::kBFloat16});
  expect_bits_of_replicas({.precision = Precision::kFloat16, .gradient_accumulation_steps = 2});
}

TEST_F(FullyShardAccelerator, WithGradientsThatAreClipped) {
  expect_bits_of_replicas({}, {.clip_norm = 1e9});
  expect_bits_of_replicas({.gradient_accumulation_steps = 2}, {.clip_value = 1e-3});
  expect_bits_of_replicas({.precision = Precision::kFloat16}, {.clip_value = 1e-3});
}

TEST_F(FullyShardAccelerator, ClipsByTheNormOfAllPieces) {
  Tensors norms[2];
  for (const bool is_sharded : {false, true}) {
    Accelerator accelerator(with_strategy({}, is_sharded));
    UnitsTraining training(accelerator, units_adamw());
    for (auto& batch : training.loader) {
      accelerator.backward(at::mse_loss(training.model(batch.data), batch.target));
      const double before = accelerator.get_total_norm(training.net->parameters());
      const double norm = accelerator.clip_grad_norm_(training.model.parameters(), 1e-3);
      const double after = accelerator.get_total_norm(training.net->parameters());
      norms[is_sharded ? 1 : 0].push_back(at::tensor({before, norm, after}));
      EXPECT_NEAR(after, 1e-3, 1e-5);
      training.optimizer.step();
      training.optimizer.zero_grad();
    }
  }
  EXPECT_TRUE(at::allclose(at::stack(norms[1]), at::stack(norms[0]), 1e-4));
}

TEST_F(FullyShardAccelerator, LeavesOutStepsThatAreNotFinite) {
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    expect_bits_of_replicas({.precision = precision, .non_finite = NonFinite::kSkip},
                            {.bad_step = 3});
  }
  expect_bits_of_replicas({.non_finite = NonFinite::kSkip},
                          {.clip_value = 1e-3, .infinite_step = 3});
  std::string texts[2];
  for (const bool is_sharded : {false, true}) {
    Accelerator accelerator(with_strategy({.non_finite = NonFinite::kStop}, is_sharded));
    UnitsTraining training(accelerator, units_adamw(), {.bad_step = 3});
    texts[is_sharded ? 1 : 0] = message_of<Error>([&] { training.train(3); });
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_SAYS(texts[1], "gradients that are not finite: 0.weight");
}

// Also those of backward passes that the program runs itself.
TEST_F(FullyShardAccelerator, LooksAtTheGradientsOfAnyBackward) {
  for (const bool with_weight : {false, true}) {
    Tensors weights[2];
    for (const bool is_sharded : {false, true}) {
      Accelerator accelerator(with_strategy({.non_finite = NonFinite::kSkip}, is_sharded));
      torch::nn::Sequential net = make_units_net();
      SGD sgd(trained_of(net), {.lr = 0.1});
      auto model = accelerator.prepare(net);
      auto optimizer = accelerator.prepare(sgd);
      for (int step = 0; step < 3; ++step) {
        const bool is_bad = step == 1 && rank_ == world_size_ - 1;
        optimizer.zero_grad();
        const at::Tensor outputs = model(at::ones({2, 4}) * (rank_ + step));
        at::Tensor loss = outputs.sum() * (is_bad ? std::numeric_limits<double>::infinity() : 1.0);
        if (!with_weight) {
          loss.backward();
        } else if (is_sharded) {
          model.fully_sharded().backward(loss, {.weight = 2});
        } else {
          model.ddp().backward(loss, {.weight = 2});
        }
        accelerator.clip_grad_value_(net->parameters(), 0.5);  // hides it
        optimizer.step();
        EXPECT_EQ(accelerator.optimizer_step_was_skipped(), step == 1);
      }
      for (auto& [name, tensor] : accelerator.get_state_dict(*net)) {
        weights[is_sharded ? 1 : 0].push_back(tensor.clone());
      }
    }
    if (rank_ != 0) continue;
    for (std::size_t i = 0; i < weights[0].size(); ++i) {
      expect_equal(weights[1][i], weights[0][i], std::to_string(i));
    }
  }
}

TEST_F(FullyShardAccelerator, TakesAnOptimizerThatWasPreparedFirst) {
  Accelerator accelerator(with_strategy({}, true));
  torch::nn::Sequential net = make_units_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto optimizer = accelerator.prepare(sgd);
  auto model = accelerator.prepare(net);
  const Tensors pieces = model.parameters();
  const Tensors& given = sgd.param_groups()[0].params();
  ASSERT_EQ(given.size(), pieces.size());
  for (std::size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(given[i].is_same(pieces[i])) << i;
  EXPECT_EQ(model.fully_sharded().unit_names().size(), 3U);
  EXPECT_SAYS(message_of<UsageError>([&] { model.ddp(); }), "kFullyShard");
}

// The example of docs/fully-shard.md: the test `guide` finds it here.
TEST_F(FullyShardAccelerator, RunsTheExampleOfTheGuide) {
  using BlockImpl = torch::nn::LinearImpl;
  torch::nn::Sequential net = make_units_net();
  AdamW adam(net->parameters(), {.lr = 0.02});
  auto data = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      sine_rows(4 * world_size_), 2);

  lockstep::Accelerator accelerator(
      {.strategy = lockstep::Strategy::kFullyShard,
       .fully_shard = {.auto_wrap_policy = lockstep::module_wrap_policy<BlockImpl>()}});
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, std::move(data));

  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model(batch.data), batch.target));
    optimizer.step();
  }
  EXPECT_EQ(accelerator.steps(), 2);
}

TEST_F(FullyShardAccelerator, RefusesWhatItCannotDo) {
  const auto refusal = [&](AcceleratorOptions options) {
    return message_of<UsageError>([&] { Accelerator accelerator(with_strategy(options, true)); });
  };
  EXPECT_SAYS(refusal({.logical_shards = 4}), "logical_shards");
  EXPECT_SAYS(refusal({.one_copy_per_machine = true}), "one_copy_per_machine");
  EXPECT_SAYS(refusal({.memory_every = 1}), "memory_every");
  EXPECT_SAYS(refusal({.check_replicas_every = 1}), "check_replicas_every");
  EXPECT_SAYS(refusal({.fully_shard = {.ignored_parameters = {"0.weight"}}}), "ignored_parameters");
  EXPECT_SAYS(refusal({.fully_shard = {.process_group = group_}}), "fully_shard.process_group");
  EXPECT_SAYS(refusal({.fully_shard = {.replicate_group = group_}}), "fully_shard.replicate_group");

  Accelerator accelerator(with_strategy({}, true));
  torch::nn::Sequential net = make_units_net();
  torch::optim::Adam adam(net->parameters(), 0.1);
  torch::mse_loss(net->forward(at::ones({2, 4})), at::ones({2, 1})).backward();
  adam.step();
  auto model = accelerator.prepare(net);
  const std::string late = message_of<UsageError>([&] { accelerator.prepare(adam); });
  EXPECT_SAYS(late, "0.weight");
  EXPECT_SAYS(late, "before its first step");
}

}  // namespace
}  // namespace lockstep::testing
