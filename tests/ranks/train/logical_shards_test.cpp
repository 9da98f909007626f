// LogicalShards in a loop of one's own, and validations in logical shards; see sharded_run.h for
// the oracle.
#include "lockstep/train/logical_shards.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/data/epoch_plan.h"
#include "lockstep/data/internal/shard_plan.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/train/internal/exact_sum.h"
#include "lockstep/train/trainer.h"
#include "tests/ranks/sharded_run.h"

namespace lockstep::testing {
namespace {

class LogicalShardsTest : public AcceleratorTest {
 protected:
  bool may_have_one_copy() const { return world_size_ > 1 && has_shared_copies(group_); }
};

// Parameters as programs have them: of other dtypes and strides, without elements, frozen, used
// twice, and not used by each shard.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl()
      : weight(register_parameter("weight", sines({37, 4}).t())),
        doubles(register_parameter("doubles", sines({37}).to(at::kDouble))),
        twice(register_parameter("twice", sines({37, 1}))),
        complex(register_parameter("complex", at::complex(sines({3}), sines({3})))),
        halves(register_parameter("halves", sines({5}).to(at::kBFloat16))),
        nothing(register_parameter("nothing", at::zeros({0, 3}))),
        frozen(register_parameter("frozen", sines({37}), /*requires_grad=*/false)),
        now_and_then(register_parameter("now_and_then", sines({7}))),
        unused(register_parameter("unused", sines({2}))),
        calls(register_buffer("calls", at::zeros({2}, at::kInt))),
        mean(register_buffer("mean", at::zeros({37}))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = at::dropout(at::tanh(input.matmul(weight) + frozen), 0.2, true);
    {
      const at::NoGradGuard no_grad;
      calls.add_(1);
      mean.mul_(0.9).add_(hidden.detach().mean(0), 0.1);
    }
    const at::Tensor scaled = hidden * doubles.to(at::kFloat) * twice.squeeze(1);
    at::Tensor output = scaled.matmul(twice) + at::real(complex * complex).sum() +
                        halves.to(at::kFloat).prod() + nothing.sum();
    if (input.sum().item<double>() > 0) output = output + now_and_then.square().sum();
    return output;
  }
  static at::Tensor sines(at::IntArrayRef sizes) {
    const auto count = c10::multiply_integers(sizes);
    return (at::arange(count, at::kFloat) * 0.7 + 1).sin().view(sizes).clone() * 0.5;
  }

  at::Tensor weight, doubles, twice, complex, halves, nothing, frozen, now_and_then, unused;
  at::Tensor calls, mean;
};
TORCH_MODULE(OddNet);

torch::nn::Sequential odd_net() {
  return torch::nn::Sequential(OddNet());
}

// Gradients that are exchanged where autograd has written them: of other dtypes, transposed, used
// twice, views of others, and not reached by each shard.
struct WideNetImpl : torch::nn::Module {
  WideNetImpl()
      : weight(register_parameter("weight", OddNetImpl::sines({20011, 4}).t())),
        doubles(register_parameter("doubles", OddNetImpl::sines({40013}).to(at::kDouble))),
        halves(register_parameter("halves", OddNetImpl::sines({140003}).to(at::kBFloat16))),
        twice(register_parameter("twice", OddNetImpl::sines({20011, 4}))),
        added(register_parameter("added", OddNetImpl::sines({70001}))),
        also_added(register_parameter("also_added", OddNetImpl::sines({70001}))),
        now_and_then(register_parameter("now_and_then", OddNetImpl::sines({70001}))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = at::dropout(at::tanh(input.matmul(weight)), 0.2, true);
    at::Tensor output = (hidden.matmul(twice) * twice.mean(0)).sum(1, true) / 100 +
                        doubles.square().mean().to(at::kFloat) + halves.mean().to(at::kFloat) +
                        (added + also_added).square().mean();
    if (input.sum().item<double>() > 0) output = output + now_and_then.square().sum();
    return output;
  }
  at::Tensor weight, doubles, halves, twice, added, also_added, now_and_then;
};
TORCH_MODULE(WideNet);

torch::nn::Sequential wide_net() {
  return torch::nn::Sequential(WideNet());
}

Outcome by_logical_shards(const ShardedRun& run, const LogicalShardsOptions& options) {
  torch::nn::Sequential net = run.net();
  auto adam = make_adam(net);
  LogicalShards shards({net.ptr()}, options);
  const SineRows rows(run.samples);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::vector<double> losses;
  for (std::int64_t epoch = 0; epoch < run.epochs; ++epoch) {
    EpochOrder order(run.samples, /*shuffle=*/true);
    order.set_epoch(0, epoch);
    const EpochPlan plan({.dataset_size = run.samples, .batch_size = run.batch_size * run.shards},
                         {.epoch = epoch}, run.shards);
    for (std::int64_t number = 0; number < plan.steps(); ++number) {
      adam.zero_grad();
      for (const int shard : shards.local_shards()) {
        shards.begin_shard((epoch << kBitsOfBatches) + number, shard);
        const SampleRange range = plan.share(number, shard);
        if (range.size == 0) {
          shards.backward(at::zeros({}), {.fraction_of_step = 0});
          continue;
        }
        std::vector<std::int64_t> chosen;
        for (const std::size_t one : order.samples(range)) {
          chosen.push_back(static_cast<std::int64_t>(one));
        }
        const at::Tensor indices = at::tensor(chosen);
        const at::Tensor targets = rows.targets.index_select(0, indices);
        const at::Tensor loss =
            at::mse_loss(net->forward(rows.inputs.index_select(0, indices)), targets);
        ShardWeight weight{.fraction_of_step = static_cast<double>(range.size) /
                                               static_cast<double>(plan.step(number).size)};
        if (run.has_weights) weight.weight = weight_of(targets);
        shards.backward(loss, weight);
      }
      shards.end_step((epoch << kBitsOfBatches) + number);
      losses.push_back(shards.loss());
      adam.step();
    }
  }
  at::set_num_threads(threads);
  return outcome_of(net, std::move(losses));
}

// Drawn from a seed: shards, data, net, weights; ranks without shards, shards without samples. Jobs
// of other numbers of ranks draw others.
TEST_F(LogicalShardsTest, TrainingsHaveTheBitsOfOneProcess) {
  constexpr std::uint32_t kSeeds = 16;
  const auto first = kSeeds * static_cast<std::uint32_t>(group_.world_size() - 1);
  for (std::uint32_t seed = first; seed < first + kSeeds; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int least, int most) {
      return least + static_cast<int>(random() % static_cast<std::uint32_t>(most - least + 1));
    };
    bool is_odd = draw(0, 1) == 0;
    ShardedRun run{.net = is_odd ? MakeNet(odd_net) : MakeNet(dropout_net),
                   .shards = draw(1, 11),
                   .samples = draw(1, 90),
                   .batch_size = draw(1, 4),
                   .epochs = draw(1, 2),
                   .has_weights = draw(0, 2) == 0};
    if (draw(0, 3) == 0) {  // Whose layers refuse a single sample.
      run.net = batch_norm_net;
      is_odd = false;
      run.batch_size = 2;
      run.samples = run.shards * run.batch_size * draw(1, 4);
    }
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << run.shards << " shards, "
                                      << run.samples << " samples");
    const LogicalShardsOptions options{
        .shards = run.shards, .process_group = group_, .gradient_as_bucket_view = draw(0, 1) == 0};
    const Outcome expected = by_one_process(run);
    expect_same_bits(by_logical_shards(run, options), expected);
    expect_same_bits(by_ranks(run, {.logical_shards = run.shards}), expected);
    if (may_have_one_copy() && !is_odd) {
      expect_same_bits(by_ranks(run, {.logical_shards = run.shards, .one_copy_per_machine = true}),
                       expected);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(LogicalShardsTest, LargeGradientsHaveTheBitsOfOneProcess) {
  for (const int shards : {group_.world_size(), 2 * group_.world_size(), 5}) {
    for (const bool is_view : {true, false}) {
      const ShardedRun run{.net = wide_net,
                           .shards = shards,
                           .samples = 4 * shards + 1,
                           .epochs = 1,
                           .has_weights = !is_view};
      SCOPED_TRACE(::testing::Message() << shards << " shards");
      const Outcome expected = by_one_process(run);
      expect_same_bits(
          by_logical_shards(
              run, {.shards = shards, .process_group = group_, .gradient_as_bucket_view = is_view}),
          expected);
      expect_same_bits(by_ranks(run, {.logical_shards = shards}), expected);
      if (!may_have_one_copy()) continue;
      AcceleratorOptions one_copy{.logical_shards = shards, .one_copy_per_machine = true};
      one_copy.ddp.gradient_as_bucket_view = is_view;
      expect_same_bits(by_ranks(run, one_copy), expected);
    }
  }
}

// Neither the sum nor what the program keeps of a gradient changes the other.
TEST_F(LogicalShardsTest, AGradientThatTheProgramKeepsIsItsOwn) {
  const int all = 2 * group_.world_size();
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor parameter = module->register_parameter("parameter", at::ones({70001}));
  LogicalShards shards({module}, {.shards = all, .process_group = group_});
  Tensors kept;
  for (const int shard : shards.local_shards()) {
    shards.begin_shard(0, shard);
    shards.begin_backward();
    (parameter * static_cast<double>(shard)).sum().backward();
    kept.push_back(parameter.grad());
    shards.take_gradients(1, {.fraction_of_step = 1.0 / all});
  }
  shards.end_step(0);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const double own = shards.local_shards()[i];
    EXPECT_TRUE(at::equal(kept[i], at::full_like(kept[i], own))) << kept[i][0];
  }
  const at::Tensor& sum = parameter.grad();
  EXPECT_TRUE(at::equal(sum, at::full_like(sum, all * (all - 1) / 2)));
}

TEST_F(LogicalShardsTest, AStepThatIsGivenUpLeavesNothing) {
  const ShardedRun run{.net = batch_norm_net, .shards = 4, .samples = 8};
  torch::nn::Sequential net = run.net();
  LogicalShards shards({net.ptr()}, {.shards = 4, .process_group = group_});
  const Outcome before = outcome_of(net, {});
  const auto make_shards = [&](std::int64_t step) {
    for (const int shard : shards.local_shards()) {
      shards.begin_shard(step, shard);
      shards.backward(net->forward(at::ones({2, 4}) * (shard + 1)).sum(),
                      {.fraction_of_step = 0.25});
    }
  };
  make_shards(0);
  EXPECT_EQ(shards.is_within_step(), !shards.local_shards().empty());
  shards.restore_buffers();
  shards.discard_step();
  EXPECT_FALSE(shards.is_within_step());
  expect_same_bits(outcome_of(net, {}), before);
  make_shards(1);  // Is given up by the first shard of the next.
  make_shards(2);
  shards.end_step(2);
  const Outcome once = outcome_of(net, {});
  const at::Tensor gradient = net->parameters()[0].grad().clone();
  net->zero_grad();
  for (std::size_t i = 0; i < net->buffers().size(); ++i) {
    net->buffers()[i].copy_(before.state[before.state.size() - net->buffers().size() + i]);
  }
  make_shards(2);
  shards.end_step(2);
  expect_same_bits(outcome_of(net, {}), once);
  EXPECT_TRUE(at::equal(net->parameters()[0].grad(), gradient));
}

// A part of it has been added to the sum of the shard before.
TEST_F(LogicalShardsTest, AShardThatFailsEndsTheStep) {
  const int all = 2 * group_.world_size();
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor first = module->register_parameter("first", at::ones({3}));
  const at::Tensor last = module->register_parameter("last", at::ones({3}));
  LogicalShards shards({module}, {.shards = all, .process_group = group_});
  const auto run_shard = [&](int shard, bool is_sparse) {
    shards.begin_shard(0, shard);
    shards.begin_backward();
    (first + last).sum().backward();
    if (is_sparse) last.mutable_grad() = last.grad().to_sparse();
    shards.take_gradients(1, {.fraction_of_step = 1.0 / all});
  };
  const std::vector<int> own = shards.local_shards();
  run_shard(own[0], false);
  EXPECT_SAYS(message_of<UsageError>([&] { run_shard(own[1], true); }), "sparse gradients");
  module->zero_grad();
  EXPECT_SAYS(message_of<UsageError>([&] { run_shard(own[1], false); }),
              concat("the next shard is ", own[0]));
  module->zero_grad();
  for (const int shard : own) run_shard(shard, false);
  shards.end_step(0);
  for (const at::Tensor& parameter : {first, last}) {
    EXPECT_TRUE(at::equal(parameter.grad(), at::full({3}, static_cast<float>(all))));
  }
}

// -0 + 0 is 0, on any number of ranks.
TEST_F(LogicalShardsTest, AShardWithoutAGradientAddsZeros) {
  const int all = 2 * group_.world_size();
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor parameter = module->register_parameter("parameter", at::ones({3}));
  LogicalShards shards({module}, {.shards = all, .process_group = group_});
  for (const int shard : shards.local_shards()) {
    shards.begin_shard(0, shard);
    shards.begin_backward();
    if (shard % 2 == 0) (parameter * -0.0).sum().backward();
    shards.take_gradients(1, {.fraction_of_step = 1.0 / all});
  }
  shards.end_step(0);
  EXPECT_FALSE(parameter.grad().signbit().any().item<bool>()) << parameter.grad();
}

TEST_F(LogicalShardsTest, WhatIsMissingIsSaid) {
  torch::nn::Sequential net = dropout_net();
  EXPECT_SAYS(message_of<UsageError>(
                  [&] { LogicalShards({net.ptr()}, {.shards = 0, .process_group = group_}); }),
              "logical_shards: 0 shards, give 1 or more");
  // Two for each rank, so that all have the same errors.
  const int all = 2 * group_.world_size();
  LogicalShards shards({net.ptr()}, {.shards = all, .process_group = group_});
  const int first = shards.local_shards().front();
  const at::Tensor loss = net->forward(at::ones({2, 4})).sum();
  const auto message = [](const auto& action) { return message_of<UsageError>(action); };
  EXPECT_SAYS(message([&] { shards.backward(loss, {}); }), "backward() without begin_shard()");
  EXPECT_SAYS(message([&] { shards.take_gradients(1, {}); }), "backward() without begin_shard()");
  EXPECT_SAYS(message([&] { shards.begin_shard(0, first + 1); }),
              concat("the next shard is ", first));
  EXPECT_SAYS(message([&] { shards.begin_shard(0, all); }), concat("the next shard is ", first));
  shards.begin_shard(0, first);
  EXPECT_SAYS(message([&] { shards.begin_shard(0, first + 1); }),
              concat("the next shard is ", first));
  EXPECT_SAYS(message([&] { shards.end_step(0); }),
              concat("before the backward() of shard ", first));
  shards.backward(net->forward(at::ones({2, 4})).sum(), {});
  EXPECT_SAYS(message([&] { shards.backward(loss, {}); }), "backward() without begin_shard()");
  EXPECT_SAYS(message([&] { shards.end_step(0); }),
              concat("before the backward() of shard ", first + 1));
  shards.begin_shard(0, first + 1);
  shards.backward(net->forward(at::ones({2, 4})).sum(), {});
  EXPECT_SAYS(message([&] { shards.end_step(1); }), "step 1 ends on rank");
}

TEST_F(LogicalShardsTest, ModelsThatDifferBetweenRanksAreRefused) {
  NEEDS_RANKS(2);
  torch::nn::Linear net(4, group_.rank() == 0 ? 2 : 3);
  LogicalShards shards({net.ptr()}, {.shards = group_.world_size(), .process_group = group_});
  shards.begin_shard(0, shards.local_shards().front());
  EXPECT_SAYS(message_of<UsageError>([&] {
                shards.backward(net->forward(at::ones({2, 4})).sum(), {});
              }),
              "logical_shards: ranks differ: rank 0 has layout=");
}

TEST_F(LogicalShardsTest, SeedsThatDifferBetweenRanksAreRefused) {
  NEEDS_RANKS(2);
  torch::nn::Linear net(4, 1);
  LogicalShards shards({net.ptr()}, {.shards = group_.world_size(),
                                     .seed = static_cast<std::uint64_t>(group_.rank()),
                                     .process_group = group_});
  shards.begin_shard(0, shards.local_shards().front());
  EXPECT_SAYS(message_of<UsageError>([&] {
                shards.backward(net->forward(at::ones({2, 4})).sum(), {});
              }),
              "logical_shards: ranks differ: rank 0 has seed=0, rank 1 has seed=1");
}

TEST_F(LogicalShardsTest, WeightsAndChangesThatAreNoneAreRefused) {
  const int all = group_.world_size();
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor parameter = module->register_parameter("parameter", at::ones({3}));
  const at::Tensor count = module->register_buffer("count", at::zeros({}, at::kLong));
  LogicalShards shards({module}, {.shards = all, .process_group = group_});
  const int own = shards.local_shards().front();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const ShardWeight& weight :
       {ShardWeight{.fraction_of_step = -1}, ShardWeight{.fraction_of_step = kNan},
        ShardWeight{.weight = kInfinity}, ShardWeight{.weight = -0.5},
        ShardWeight{.weight = kNan}}) {
    shards.begin_shard(0, own);
    EXPECT_SAYS(message_of<UsageError>([&] { shards.backward(parameter.sum(), weight); }),
                "it must be 0 or more, and finite");
    EXPECT_SAYS(message_of<UsageError>([&] { shards.take_gradients(1, weight); }),
                "it must be 0 or more, and finite");
    EXPECT_FALSE(parameter.grad().defined());
  }
  shards.begin_shard(0, own);
  count.add_((std::int64_t{1} << 53) + 1);
  const auto backward = [&] { shards.backward(parameter.sum(), {}); };
  if (own == 0) {
    EXPECT_SAYS(message_of<UsageError>(backward), "the buffer 'count', which changes by");
  } else {
    backward();
  }
}

TEST_F(LogicalShardsTest, GradientsOfAShardWithoutSamplesDoNotCount) {
  const int all = 2 * group_.world_size();
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor parameter = module->register_parameter("parameter", at::ones({3}));
  LogicalShards shards({module}, {.shards = all, .process_group = group_});
  for (const int shard : shards.local_shards()) {
    shards.begin_shard(0, shard);
    shards.begin_backward();
    const double value = shard == 0 ? 1 : std::numeric_limits<double>::quiet_NaN();
    (parameter * value).sum().backward();
    shards.take_gradients(value, {.fraction_of_step = shard == 0 ? 1.0 : 0.0});
  }
  shards.end_step(0);
  EXPECT_TRUE(at::equal(parameter.grad(), at::ones({3}))) << parameter.grad();
  EXPECT_EQ(shards.loss(), 1);
}

// An optimizer updates a parameter with a gradient of zeros, and one without none.
TEST_F(LogicalShardsTest, WhatNoShardHasReachedHasNoGradientOnAnyRank) {
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor used = module->register_parameter("used", at::ones({3}));
  const at::Tensor unused = module->register_parameter("unused", at::ones({3}));
  LogicalShards shards({module}, {.shards = 1, .process_group = group_});  // Other ranks have none.
  for (const std::int64_t step : {0, 1}) {
    used.mutable_grad() = at::zeros({3});
    unused.mutable_grad() = at::zeros({3});
    for (const int shard : shards.local_shards()) {
      shards.begin_shard(step, shard);
      shards.backward(used.sum(), {});
    }
    shards.end_step(step);
    EXPECT_TRUE(at::equal(used.grad(), at::ones({3})));
    EXPECT_FALSE(unused.grad().defined());
  }
}

TEST_F(LogicalShardsTest, WhatIsDrawnBehindAStepIsTheSameOnAllRanks) {
  torch::nn::Sequential net = dropout_net();
  LogicalShards shards({net.ptr()}, {.shards = 3, .process_group = group_});
  at::manual_seed(static_cast<std::uint64_t>(rank_));
  for (const int shard : shards.local_shards()) {
    shards.begin_shard(7, shard);
    shards.backward(net->forward(at::ones({2, 4})).sum(), {.fraction_of_step = 1.0 / 3});
  }
  shards.end_step(7);
  const at::Tensor drawn = at::rand({4});
  const at::Tensor of_rank_0 = drawn.clone();
  group_.broadcast(of_rank_0, 0);
  EXPECT_TRUE(at::equal(drawn, of_rank_0));
}

// Their sum would be that of no step.
TEST_F(LogicalShardsTest, RanksAtDifferentStepsAreRefused) {
  NEEDS_RANKS(2);
  const int all = group_.world_size();
  torch::nn::Sequential net = dropout_net();
  LogicalShards shards({net.ptr()}, {.shards = all, .process_group = group_});
  const auto run_step = [&](std::int64_t step) {
    net->zero_grad();
    for (const int shard : shards.local_shards()) {
      shards.begin_shard(step, shard);
      shards.backward(net->forward(at::ones({2, 4})).sum(), {.fraction_of_step = 1.0 / all});
    }
    shards.end_step(step);
  };
  run_step(0);
  const std::int64_t own = group_.rank() == 0 ? 2 : 1;
  EXPECT_SAYS(message_of<UsageError>([&] { run_step(own); }),
              concat("step ", own, " ends on rank ", group_.rank()));
  run_step(3);
}

TEST_F(LogicalShardsTest, ParametersThatChangeLaterAreRefused) {
  const auto message = [&](const auto& change) {
    const auto module = std::make_shared<torch::nn::Module>();
    const at::Tensor used = module->register_parameter("used", at::ones({3}));
    module->register_parameter("frozen", at::ones({3}), /*requires_grad=*/false);
    LogicalShards shards({module}, {.shards = group_.world_size(), .process_group = group_});
    return message_of<UsageError>([&] {
      for (const std::int64_t step : {0, 1}) {
        module->zero_grad();
        if (step == 1) change(*module);
        for (const int shard : shards.local_shards()) {
          shards.begin_shard(step, shard);
          at::Tensor loss = at::zeros({});
          for (const at::Tensor& one : module->parameters()) loss = loss + one.sum();
          shards.backward(loss, {});
        }
        shards.end_step(step);
      }
    });
  };
  EXPECT_SAYS(message([](torch::nn::Module& module) {
                module.named_parameters()["frozen"].set_requires_grad(true);
              }),
              "the parameter 'frozen' was added or unfrozen later");
  EXPECT_SAYS(
      message([](torch::nn::Module& module) { module.register_parameter("late", at::ones({2})); }),
      "the parameter 'late' was added or unfrozen later");
  EXPECT_SAYS(message([](torch::nn::Module& module) {
                module.named_parameters()["used"].set_data(at::ones({5}));
              }),
              "another size or dtype than at first, 3 numbers of Float, and now [5] of Float");
}

struct MeanTask : Task<torch::nn::SequentialImpl> {
  std::shared_ptr<torch::nn::SequentialImpl> configure_model() override {
    return dropout_net().ptr();
  }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizer(
      torch::nn::SequentialImpl& net) override {
    return std::make_unique<torch::optim::Adam>(net.parameters());
  }
  at::Tensor training_step(Model& model, Batch& batch, StepContext&) override {
    return at::mse_loss(model(batch.data), batch.target);
  }
  void validation_step(Model& model, Batch& batch, StepContext& step) override {
    step.log("loss", at::mse_loss(model(batch.data), batch.target));
    drawn.push_back(at::rand({1}).item<double>());
    batches.insert(step.batch_index());
  }
  std::set<std::int64_t> batches;
  std::vector<double> drawn;
};

double drawn_of(std::uint64_t seed, std::int64_t step, int shard) {
  seed_step(seed ^ 0x9E3779B97F4A7C15U, shard, step, at::kCPU);
  return at::rand({1}).item<double>();
}

TEST_F(LogicalShardsTest, AValidationHasTheBitsOfOneProcess) {
  constexpr int kShards = 5;
  constexpr std::int64_t kSamples = 73;
  const FolderOfRanks folder(group_, "validation-");
  MeanTask task;
  Trainer trainer({.batch_size = 3,
                   .logical_shards = kShards,
                   .enable_progress_bar = false,
                   .directory = folder.path()});
  const Metrics metrics = trainer.validate(task, sine_rows(kSamples), {.ckpt_path = ""});
  const SineRows rows(kSamples);
  std::vector<std::int64_t> sum(kWordsOfExactSum);
  torch::nn::Sequential net = dropout_net();
  net->eval();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const EpochPlan plan({.dataset_size = kSamples, .batch_size = 3 * kShards}, {}, kShards);
  for (std::int64_t number = 0; number < plan.steps(); ++number) {
    for (int shard = 0; shard < kShards; ++shard) {
      const SampleRange range = plan.share(number, shard);
      if (range.size == 0) continue;
      const at::Tensor loss =
          at::mse_loss(net->forward(rows.inputs.narrow(0, range.begin, range.size)),
                       rows.targets.narrow(0, range.begin, range.size));
      add_exactly(sum, loss.item<double>() * static_cast<double>(range.size));
    }
  }
  at::set_num_threads(threads);
  EXPECT_EQ(metrics, (Metrics{{"loss", rounded_sum(sum) / kSamples}}));
  EXPECT_EQ(task.batches.size(), static_cast<std::size_t>(plan.steps()));
  // Its random numbers are those of the shards, whichever rank has them.
  const ShardBlock own = shards_of_rank(kShards, group_.world_size(), group_.rank());
  std::vector<double> expected;
  for (std::int64_t number = 0; number < plan.steps(); ++number) {
    for (int shard = own.begin; shard < own.end; ++shard) {
      expected.push_back(drawn_of(trainer.options().seed, number, shard));
    }
  }
  if (own.size() > 0) {
    EXPECT_EQ(task.drawn, expected);
  }
}

}  // namespace
}  // namespace lockstep::testing
