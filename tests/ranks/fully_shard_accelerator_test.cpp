// Strategy::kFullyShard of Accelerator and Trainer: all has the bits of DistributedDataParallel.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/sequential.h>
#include <torch/optim/adam.h>

#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/train/accelerator.h"
#include "tests/ranks/accelerator_fixture.h"
#include "tests/ranks/trainer_fixture.h"

namespace lockstep::testing {
namespace {

using MakeUnitsOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

MakeUnitsOptimizer units_adamw() {
  return [](const Tensors& parameters) {
    return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.02, .amsgrad = true});
  };
}
MakeUnitsOptimizer units_nadam() {
  return [](const Tensors& parameters) { return std::make_unique<NAdam>(parameters); };
}
MakeUnitsOptimizer units_libtorch_adam() {
  return [](const Tensors& parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, 0.02);
  };
}
MakeUnitsOptimizer units_libtorch_sgd() {
  return [](const Tensors& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

/// What one step does beside backward and update.
struct UnitsStepPlan {
  double clip_norm = 0;
  double clip_value = 0;
  std::int64_t bad_step = -1;       ///< The last rank's loss is no number.
  std::int64_t infinite_step = -1;  ///< The last rank has a gradient that overflows.
};

// A frozen parameter, one whose pieces are empty on most ranks, and uneven ones.
torch::nn::Sequential make_units_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 37), torch::nn::Tanh(), torch::nn::Linear(37, 23),
                            torch::nn::Tanh(), torch::nn::Linear(23, 1));
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.3);
  }
  net->parameters()[3].set_requires_grad(false);
  return net;
}

Tensors trained_of(const torch::nn::Sequential& net) {
  Tensors trained;
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

struct UnitsTraining {
  UnitsTraining(Accelerator& of, const MakeUnitsOptimizer& make, UnitsStepPlan planned = {})
      : accelerator(of), plan(planned), adam(make(trained_of(net))) {
    accelerator.register_for_checkpointing("seen", {{"samples", seen}});
  }

  void train(
      std::int64_t epochs, const std::function<void()>& after_step = [] {}) {
    while (loader.epoch() < epochs) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        const at::Tensor output = model(batch.data);
        at::Tensor loss = at::mse_loss(output, batch.target);
        const bool is_last_rank = accelerator.process_index() + 1 == accelerator.num_processes();
        if (accelerator.steps() == plan.bad_step && is_last_rank) {
          loss = loss * std::numeric_limits<double>::quiet_NaN();
        }
        if (accelerator.steps() == plan.infinite_step && is_last_rank) {
          loss = loss + (output * 3e38).sum();  // Of two samples the bias has twice that.
        }
        accelerator.backward(loss);
        const Tensors parameters = net->parameters();
        if (plan.clip_norm > 0) accelerator.clip_grad_norm_(parameters, plan.clip_norm);
        if (plan.clip_value > 0) accelerator.clip_grad_value_(parameters, plan.clip_value);
        optimizer.step();
        scheduler.step();
        seen += accelerator.gather_for_metrics(batch.data).size(0);
        if (accelerator.sync_gradients()) after_step();
      }
      losses.push_back(evaluate());
    }
  }

  double evaluate() {
    return accelerator.evaluate([&] {
      const at::NoGradGuard no_grad;
      double sum = 0;
      model->eval();
      for (auto& batch : test) {
        const at::Tensor errors = (model(batch.data) - batch.target).square();
        sum += accelerator.gather_for_metrics(errors).sum().item<double>();
      }
      model->train();
      return sum;
    });
  }

  Accelerator& accelerator;
  UnitsStepPlan plan;
  torch::nn::Sequential net = make_units_net();
  std::unique_ptr<torch::optim::Optimizer> adam;
  OneCycleLR one_cycle{*adam, {.max_lr = {0.05}, .total_steps = 100, .cycle_momentum = false}};
  PreparedModel<torch::nn::SequentialImpl> model = accelerator.prepare(net);
  PreparedOptimizer<torch::optim::Optimizer> optimizer = accelerator.prepare(*adam);
  PreparedScheduler<OneCycleLR> scheduler = accelerator.prepare(one_cycle);
  DataLoader<decltype(sine_rows(1))> loader =
      accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
  DataLoader<decltype(sine_rows(1))> test =
      accelerator.make_data_loader(sine_rows(13), {.batch_size = 3, .shuffle = false});
  at::Tensor seen = at::zeros({}, at::kLong);
  std::vector<double> losses;
};

class FullyShardAccelerator : public AcceleratorTest {
 protected:
  static AcceleratorOptions with_strategy(AcceleratorOptions options, bool is_sharded) {
    options.strategy = is_sharded ? Strategy::kFullyShard : Strategy::kDdp;
    options.fully_shard.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
    return options;
  }

  /// As in FullyShardTest.
  bool sums_in_one_order() const { return group_.shares_memory() || world_size_ <= 2; }

  void expect_equal(const at::Tensor& actual, const at::Tensor& expected,
                    const std::string& name) const {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
    ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << name;
    if (sums_in_one_order()) {
      EXPECT_TRUE(at::equal(actual, expected)) << name;
    } else {
      EXPECT_TRUE(at::allclose(actual, expected, 1e-3, 1e-5, true)) << name;
    }
  }

  void expect_same(UnitsTraining& training, UnitsTraining& expected) const {
    const TensorDict weights = training.accelerator.get_state_dict(*training.net);
    const bool is_sharded = training.accelerator.options().strategy == Strategy::kFullyShard;
    if (rank_ == 0 || !is_sharded) {
      const TensorDict others = state_dict(*expected.net);
      ASSERT_EQ(weights.size(), others.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(weights[i].first, others[i].first);
        expect_equal(weights[i].second, others[i].second, weights[i].first);
      }
    } else {
      EXPECT_TRUE(weights.empty());
    }
    ASSERT_EQ(training.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < training.losses.size(); ++i) {
      expect_equal(at::scalar_tensor(training.losses[i]), at::scalar_tensor(expected.losses[i]),
                   "loss");
    }
    EXPECT_EQ(training.accelerator.steps(), expected.accelerator.steps());
    EXPECT_EQ(training.accelerator.scaler().get_scale(), expected.accelerator.scaler().get_scale());
  }

  void expect_bits_of_replicas(const AcceleratorOptions& options,
                               const UnitsStepPlan& plan = {}) const {
    for (const MakeUnitsOptimizer& make : {units_adamw(), units_libtorch_sgd()}) {
      Accelerator shards(with_strategy(options, true));
      UnitsTraining training(shards, make, plan);
      Accelerator other(with_strategy(options, false));
      UnitsTraining replicas(other, make, plan);
      training.train(2);
      replicas.train(2);
      expect_same(training, replicas);
    }
  }
};

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

/// With a folder that all ranks save to.
class FullyShardSnapshots : public FullyShardAccelerator {
 protected:
  AcceleratorOptions options_of(bool is_sharded, bool sharded_saves, bool asynchronous) const {
    return with_strategy({.directory = path_,
                          .keep_last = 9,
                          .asynchronous_saves = asynchronous,
                          .sharded_saves = sharded_saves},
                         is_sharded);
  }

  void remove_snapshots() const {
    group_.barrier();
    if (rank_ == 0) std::filesystem::remove_all(path_);
    group_.barrier();
  }

  std::filesystem::path newest() const {
    std::filesystem::path path;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (SnapshotName::parse(entry.path().filename().string())) {
        path = std::max(path, entry.path());
      }
    }
    return path;
  }

  /// Of the newest snapshot: model and optimizer.
  TensorDict saved_tensors() const {
    TensorDict tensors;
    const Snapshot snapshot = load_snapshot(newest());
    for (const auto& [name, tensor] : snapshot.model) tensors.emplace_back(name, tensor);
    visit_tensors(snapshot.optimizer, [&](const std::string& name, const at::Tensor& tensor) {
      tensors.emplace_back(name, tensor);
    });
    return tensors;
  }

  const FolderOfRanks folder_{group_, "fully-shard-"};
  const std::string path_ = folder_.path() + "/snapshots";
};

TEST_F(FullyShardSnapshots, SavesWhatReplicasSave) {
  for (const MakeUnitsOptimizer& make :
       {units_adamw(), units_nadam(), units_libtorch_adam(), units_libtorch_sgd()}) {
    for (const auto& [sharded_saves, asynchronous] :
         {std::pair(false, false), std::pair(false, true), std::pair(true, false),
          std::pair(true, true)}) {
      SCOPED_TRACE(::testing::Message() << sharded_saves << asynchronous);
      TensorDict saved[2];
      for (const bool is_sharded : {false, true}) {
        Accelerator accelerator(options_of(is_sharded, sharded_saves, asynchronous));
        UnitsTraining training(accelerator, make);
        training.train(1, [&] {  // What it has saved does not change any more.
          if (accelerator.steps() == 3) accelerator.save_state();
        });
        accelerator.wait_for_saves();
        accelerator.wait_for_everyone();
        saved[is_sharded ? 1 : 0] = saved_tensors();
        remove_snapshots();
      }
      ASSERT_EQ(saved[1].size(), saved[0].size());
      for (std::size_t i = 0; i < saved[0].size(); ++i) {
        EXPECT_EQ(saved[1][i].first, saved[0][i].first);
        EXPECT_EQ(saved[1][i].second.strides(), saved[0][i].second.strides());
        expect_equal(saved[1][i].second, saved[0][i].second, saved[0][i].first);
      }
    }
  }
}

TEST_F(FullyShardSnapshots, EitherStrategyGoesOnFromThoseOfTheOther) {
  for (const bool sharded_saves : {false, true}) {
    for (const MakeUnitsOptimizer& make : {units_adamw(), units_libtorch_adam()}) {
      Accelerator undisturbed(options_of(false, false, false));
      UnitsTraining whole(undisturbed, make);
      whole.train(2);
      for (const bool saved_sharded : {false, true}) {
        {
          Accelerator first(options_of(saved_sharded, sharded_saves, false));
          UnitsTraining training(first, make);
          training.train(1, [&] {
            if (first.steps() == 3) first.save_state();
          });
          first.wait_for_everyone();
        }
        for (const bool loaded_sharded : {false, true}) {
          if (!saved_sharded && !loaded_sharded) continue;
          SCOPED_TRACE(::testing::Message() << saved_sharded << loaded_sharded << sharded_saves);
          Accelerator resumed(options_of(loaded_sharded, sharded_saves, false));
          UnitsTraining training(resumed, make);
          ASSERT_TRUE(resumed.load_state());
          EXPECT_EQ(resumed.steps(), 3);
          training.train(2);
          training.losses = whole.losses;  // Those from before the snapshot are missing.
          expect_same(training, whole);
          EXPECT_EQ(training.seen.item<std::int64_t>(), 2 * 41);
        }
        remove_snapshots();
      }
    }
  }
}

TEST_F(FullyShardSnapshots, AreRefusedByAnotherModelAndChangeNothing) {
  Accelerator saving(options_of(true, false, false));
  UnitsTraining saved(saving, units_adamw());
  saved.train(1);
  saving.save_state();
  saving.wait_for_everyone();

  Accelerator other(options_of(true, false, false));
  torch::nn::Sequential net(torch::nn::Linear(4, 37));
  AdamW adamw(net->parameters());
  auto model = other.prepare(net);
  auto optimizer = other.prepare(adamw);
  const TensorDict before = other.get_state_dict(*net);
  const std::string message = message_of<UsageError>([&] { other.load_state(); });
  EXPECT_SAYS(message, "does not fit the model");
  EXPECT_SAYS(message, "'2.weight' is unexpected");
  const TensorDict after = other.get_state_dict(*net);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(after[i].second, before[i].second));
  }

  Accelerator with_sgd(options_of(true, false, false));
  UnitsTraining training(with_sgd, units_libtorch_sgd());
  EXPECT_SAYS(message_of<UsageError>([&] { with_sgd.load_state(); }), "SGD");
  saving.wait_for_everyone();
}

// Where a file cannot be made the rank still does its part of the gathers.
TEST_F(FullyShardSnapshots, AFolderThatCannotBeMadeIsAnErrorAndNoHang) {
  if (rank_ == 0) std::ofstream(path_) << "no directory";
  group_.barrier();
  auto model = fully_shard(make_units_net(), {.process_group = group_});
  AdamW adamw(model.parameters());
  const auto state = model.sharded().gathered_state(adamw);
  SnapshotDirectory whole(path_ + "/whole", {.process_group = group_});
  const auto save = [&](SnapshotDirectory& snapshots) { snapshots.save(*state, {.step = 1}); };
  if (rank_ == 0) {
    EXPECT_SAYS(message_of<SystemError>([&] { save(whole); }), path_);
  } else {
    save(whole);
  }
  SnapshotDirectory sharded(path_ + "/sharded", {.sharded = true, .process_group = group_});
  EXPECT_SAYS(message_of<SystemError>([&] { save(sharded); }), path_);
  group_.barrier();
}

/// Three steps over a group, from its newest snapshot on, and what is saved then.
class FullyShardOtherRanks : public FullyShardSnapshots {
 protected:
  void step_and_save(const ProcessGroup& group, bool is_sharded, bool sharded_saves,
                     std::int64_t first_step) const {
    torch::nn::Sequential net = make_units_net();
    const auto train = [&](auto& model, torch::optim::Optimizer& optimizer, const auto& load,
                           const auto& save) {
      load();
      for (std::int64_t step = first_step; step < first_step + 3; ++step) {
        optimizer.zero_grad();
        const auto place = static_cast<double>(group.rank() + 5 * step);
        const at::Tensor inputs = (at::arange(20) * 0.3 + place).sin().view({5, 4});
        model.forward(inputs.to(at::kFloat)).square().mean().backward();
        optimizer.step();
      }
      save(SaveOptions{.step = first_step + 3});
    };
    SnapshotDirectory snapshots(path_,
                                {.keep_last = 9, .sharded = sharded_saves, .process_group = group});
    if (is_sharded) {
      auto model =
          fully_shard(net, {.process_group = group,
                            .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
      torch::optim::Adam adam(trained_of(net), 0.02);
      model.sharded().shard_optimizer(adam);
      const auto state = model.sharded().gathered_state(adam);
      train(
          model, adam, [&] { snapshots.load_latest(*state); },
          [&](const SaveOptions& options) { snapshots.save(*state, options); });
    } else {
      DistributedDataParallel model(net, {.process_group = group});
      torch::optim::Adam adam(trained_of(net), 0.02);
      train(
          model, adam, [&] { snapshots.load_latest(*net, adam); },
          [&](const SaveOptions& options) { snapshots.save(*net, adam, options); });
    }
    group.barrier();
  }
};

TEST_F(FullyShardOtherRanks, GoesOnWithTheBitsOfReplicas) {
  NEEDS_RANKS(2);
  std::vector<int> members;
  for (int rank = 0; rank + 1 < world_size_; ++rank) members.push_back(rank);
  const ProcessGroup fewer = group_.new_group(members);
  for (const bool sharded_saves : {false, true}) {
    TensorDict saved[2];
    for (const bool is_sharded : {false, true}) {
      step_and_save(group_, is_sharded, sharded_saves, 0);
      if (fewer) step_and_save(fewer, is_sharded, sharded_saves, 3);
      group_.barrier();
      step_and_save(group_, is_sharded, sharded_saves, 6);
      EXPECT_EQ(load_snapshot(newest()).step, 9);
      saved[is_sharded ? 1 : 0] = saved_tensors();
      remove_snapshots();
    }
    ASSERT_EQ(saved[1].size(), saved[0].size());
    for (std::size_t i = 0; i < saved[0].size(); ++i) {
      EXPECT_EQ(saved[1][i].first, saved[0][i].first);
      expect_equal(saved[1][i].second, saved[0][i].second, saved[0][i].first);
    }
  }
}

class FullyShardTrainer : public TrainerTest {
 protected:
  TrainerOptions options_of(const char* max_duration, const std::string& name,
                            bool is_sharded) const {
    TrainerOptions made = options(max_duration, name);
    made.strategy = is_sharded ? Strategy::kFullyShard : Strategy::kDdp;
    return made;
  }
  at::Tensor weights_of(const std::string& name) const {
    const SnapshotDirectory snapshots(path_ + "/" + name + "/snapshots");
    return snapshots.read_latest()->model[0].second;
  }
};

TEST_F(FullyShardTrainer, HasTheBitsOfReplicasAndGoesOnFromItsSnapshots) {
  // Where sums have one order, to the bit.
  const double tolerance = group_.shares_memory() || world_size_ <= 2 ? 0 : 1e-4;
  const auto expect_close = [&](const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance)) << actual << expected;
  };
  const auto fit = [&](const TrainerOptions& options) {
    Line task;
    Trainer trainer(options);
    trainer.add(ModelCheckpoint());
    trainer.add(ThroughputMonitor());
    const FitResult result = trainer.fit(task, numbered(), numbered());
    group_.barrier();
    return result;
  };
  const FitResult expected = fit(options_of("3ep", "replicas", false));
  const FitResult result = fit(options_of("3ep", "shards", true));
  EXPECT_NEAR(*find_metric(result.metrics, "train_loss"),
              *find_metric(expected.metrics, "train_loss"), tolerance);
  EXPECT_NEAR(*find_metric(result.metrics, "grad_norm"),
              *find_metric(expected.metrics, "grad_norm"), 1e-4);
  expect_close(weights_of("shards"), weights_of("replicas"));
  fit(options_of("4ba", "parts", true));
  fit(options_of("9ba", "parts", false));
  fit(options_of("3ep", "parts", true));
  expect_close(weights_of("parts"), weights_of("replicas"));
  Line task;
  Trainer trainer(options_of("3ep", "shards", true));
  trainer.add(ModelCheckpoint());
  Trainer other(options_of("3ep", "replicas", false));
  other.add(ModelCheckpoint());
  for (const char* which : {"last", "best"}) {
    const Metrics ours = trainer.test(task, numbered(), {.ckpt_path = which});
    const Metrics theirs = other.test(task, numbered(), {.ckpt_path = which});
    EXPECT_NEAR(*find_metric(ours, "test_loss"), *find_metric(theirs, "test_loss"), tolerance);
  }
}

TEST_F(FullyShardTrainer, RefusesWhatItCannotDo) {
  Line task;
  Trainer trainer(options_of("1ep", "run", true));
  EXPECT_SAYS(message_of<UsageError>([&] { trainer.find_batch_size(task, numbered()); }),
              "find_batch_size");
  trainer.add(EmaCallback({.decay = 0.5}));
  EXPECT_SAYS(message_of<UsageError>([&] { trainer.fit(task, numbered()); }), "EmaCallback");
}

}  // namespace
}  // namespace lockstep::testing
