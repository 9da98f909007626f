// One copy per machine as an option of Accelerator and Trainer: all has the bits of replicas.
#include "lockstep/train/accelerator.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "tests/ranks/one_copy/fixture.h"
#include "tests/ranks/train/accelerator_fixture.h"
#include "tests/ranks/train/trainer_fixture.h"

namespace lockstep::testing {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

MakeOptimizer own_adamw() {
  return [](const Tensors& parameters) {
    return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.02, .amsgrad = true});
  };
}
MakeOptimizer adam_of_libtorch() {
  return [](const Tensors& parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, 0.02);
  };
}

/// What one step does beside backward and update.
struct StepPlan {
  double clip_norm = 0;
  double clip_value = 0;
  std::int64_t bad_step = -1;       ///< The last rank's loss is no number.
  std::int64_t infinite_step = -1;  ///< The last rank has an infinite gradient, and none is NaN.
};

// With a parameter that autograd leaves where it is, and small ones.
torch::nn::Sequential make_wide_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 200), torch::nn::Tanh(),
                            torch::nn::Linear(200, 400), torch::nn::Tanh(),
                            torch::nn::Linear(400, 1));
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.1);
  }
  return net;
}

/// A training with all that an accelerator prepares, saves and loads.
struct WholeTraining {
  WholeTraining(Accelerator& of, const MakeOptimizer& make, StepPlan planned = {})
      : accelerator(of), plan(planned), adam(make(net->parameters())) {
    accelerator.register_for_checkpointing("average", average);
  }

  void train(
      std::int64_t epochs, const std::function<void()>& after_step = [] {}) {
    while (loader.epoch() < epochs) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        at::Tensor loss = at::mse_loss(model(batch.data), batch.target);
        const bool is_last_rank = accelerator.process_index() + 1 == accelerator.num_processes();
        if (accelerator.steps() == plan.bad_step && is_last_rank) {
          loss = loss * std::numeric_limits<double>::quiet_NaN();
        }
        if (accelerator.steps() == plan.infinite_step && is_last_rank) {
          loss = loss + (net->parameters().back() * std::numeric_limits<double>::infinity()).sum();
        }
        accelerator.backward(loss);
        if (plan.clip_norm > 0) accelerator.clip_grad_norm_(model.parameters(), plan.clip_norm);
        if (plan.clip_value > 0) accelerator.clip_grad_value_(model.parameters(), plan.clip_value);
        optimizer.step();
        scheduler.step();
        if (!accelerator.sync_gradients()) continue;
        average.update();
        after_step();
      }
      losses.push_back(evaluate());
    }
  }

  // With the averaged weights.
  double evaluate() {
    const auto averaged = average.apply();
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
  StepPlan plan;
  torch::nn::Sequential net = make_wide_net();
  std::unique_ptr<torch::optim::Optimizer> adam;
  OneCycleLR one_cycle{*adam, {.max_lr = {0.05}, .total_steps = 100, .cycle_momentum = false}};
  PreparedModel<torch::nn::SequentialImpl> model = accelerator.prepare(net);
  PreparedOptimizer<torch::optim::Optimizer> optimizer = accelerator.prepare(*adam);
  PreparedScheduler<OneCycleLR> scheduler = accelerator.prepare(one_cycle);
  DataLoader<decltype(sine_rows(1))> loader =
      accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
  DataLoader<decltype(sine_rows(1))> test =
      accelerator.make_data_loader(sine_rows(13), {.batch_size = 3, .shuffle = false});
  ExponentialMovingAverage average{*net, {.decay = 0.5}};
  std::vector<double> losses;
};

class AcceleratedOneCopy : public OneCopy {
 protected:
  static AcceleratorOptions with_one_copy(AcceleratorOptions options, bool one_copy) {
    options.one_copy_per_machine = one_copy;
    return options;
  }

  static void expect_same(const WholeTraining& training, const WholeTraining& expected) {
    expect_same_bits(training.net->parameters(), expected.net->parameters());
    expect_same_state(*training.adam, *expected.adam);
    EXPECT_EQ(training.losses, expected.losses);
    EXPECT_EQ(training.adam->param_groups()[0].options().get_lr(),
              expected.adam->param_groups()[0].options().get_lr());
    EXPECT_EQ(training.accelerator.steps(), expected.accelerator.steps());
    const TensorDict averages = training.average.state_dict();
    const TensorDict others = expected.average.state_dict();
    ASSERT_EQ(averages.size(), others.size());
    for (std::size_t i = 0; i < averages.size(); ++i) {
      EXPECT_TRUE(same_bits(averages[i].second, others[i].second)) << averages[i].first;
    }
  }

  void expect_bits_of_replicas(const AcceleratorOptions& options, const StepPlan& plan = {}) const {
    for (const MakeOptimizer& make : {own_adamw(), adam_of_libtorch()}) {
      Accelerator shared(with_one_copy(options, true));
      WholeTraining training(shared, make, plan);
      EXPECT_TRUE(ModelCopy::find(training.net->parameters()[0]).copy != nullptr);
      Accelerator other(with_one_copy(options, false));
      WholeTraining replicas(other, make, plan);
      training.train(3);
      replicas.train(3);
      expect_same(training, replicas);
      EXPECT_TRUE(same_bits_everywhere(copies_of(training.net)));
    }
  }
};

TEST_F(AcceleratedOneCopy, HasTheBitsOfReplicas) {
  NEEDS_COPIES();
  expect_bits_of_replicas({});
  expect_bits_of_replicas({.split_batches = true});
  expect_bits_of_replicas({.gradient_accumulation_steps = 3});
}

TEST_F(AcceleratedOneCopy, InMixedPrecision) {
  NEEDS_COPIES();
  expect_bits_of_replicas({.precision = Precision::kBFloat16});
  expect_bits_of_replicas({.precision = Precision::kFloat16, .gradient_accumulation_steps = 2});
}

TEST_F(AcceleratedOneCopy, WithGradientsThatAreClipped) {
  NEEDS_COPIES();
  expect_bits_of_replicas({}, {.clip_norm = 1e9});
  expect_bits_of_replicas({.gradient_accumulation_steps = 2}, {.clip_value = 1e-3});
  expect_bits_of_replicas({.precision = Precision::kFloat16}, {.clip_value = 1e-3});
}

TEST_F(AcceleratedOneCopy, LeavesOutStepsThatAreNotFinite) {
  NEEDS_COPIES();
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    expect_bits_of_replicas({.precision = precision, .non_finite = NonFinite::kSkip},
                            {.bad_step = 3});
  }
  expect_bits_of_replicas({.non_finite = NonFinite::kSkip},
                          {.clip_value = 1e-3, .infinite_step = 3});
  std::string texts[2];
  for (const bool one_copy : {false, true}) {
    Accelerator accelerator(with_one_copy({.non_finite = NonFinite::kStop}, one_copy));
    WholeTraining training(accelerator, own_adamw(), {.bad_step = 3});
    texts[one_copy ? 1 : 0] = message_of<Error>([&] { training.train(3); });
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_SAYS(texts[1], "gradients that are not finite: 0.weight");
}

TEST_F(AcceleratedOneCopy, GoesOnFromItsSnapshotsAndFromThoseOfReplicas) {
  NEEDS_COPIES();
  const FolderOfRanks folder(group_, "one-copy-");
  for (const bool is_sharded : {false, true}) {
    for (const MakeOptimizer& make : {own_adamw(), adam_of_libtorch()}) {
      Accelerator undisturbed;
      WholeTraining whole(undisturbed, make);
      whole.train(3);
      for (const bool saved_shared : {false, true}) {
        const AcceleratorOptions options{.directory = folder.path() + "/snapshots",
                                         .asynchronous_saves = is_sharded,
                                         .sharded_saves = is_sharded};
        {
          Accelerator first(with_one_copy(options, saved_shared));
          WholeTraining training(first, make);
          training.train(1, [&] {  // What it has saved does not change any more.
            if (first.steps() == 5) first.save_state();
          });
          first.wait_for_saves();
          first.wait_for_everyone();
        }
        for (const bool loaded_shared : {false, true}) {
          if (!saved_shared && !loaded_shared) continue;
          SCOPED_TRACE(::testing::Message() << saved_shared << loaded_shared << is_sharded);
          Accelerator resumed(with_one_copy(options, loaded_shared));
          WholeTraining training(resumed, make);
          ASSERT_TRUE(resumed.load_state());
          EXPECT_EQ(resumed.steps(), 5);
          training.train(3);
          training.losses = whole.losses;  // Of epochs before the snapshot it has none.
          expect_same(training, whole);
          resumed.wait_for_everyone();
        }
        if (rank_ == 0) std::filesystem::remove_all(options.directory);
        group_.barrier();
      }
    }
  }
}

TEST_F(AcceleratedOneCopy, IsTheOptionOfPreparedModelsToo) {
  NEEDS_COPIES();
  Accelerator accelerator({.ddp = {.one_copy_per_machine = true}});
  EXPECT_TRUE(accelerator.options().one_copy_per_machine);
  torch::nn::Sequential net = make_wide_net();
  const auto model = accelerator.prepare(net);
  EXPECT_TRUE(ModelCopy::find(net->parameters()[0]).copy != nullptr);
}

class TrainedOneCopy : public TrainerTest {
 protected:
  TrainerOptions options_of(const char* max_duration, const std::string& name,
                            bool one_copy) const {
    TrainerOptions made = options(max_duration, name);
    made.one_copy_per_machine = one_copy;
    return made;
  }
};

TEST_F(TrainedOneCopy, HasTheBitsOfReplicasAndGoesOnFromItsSnapshots) {
  NEEDS_COPIES();
  const auto fit = [&](Line& task, const TrainerOptions& options) {
    Trainer trainer(options);
    trainer.add(EmaCallback({.decay = 0.5}));
    trainer.add(ModelCheckpoint());
    const FitResult result = trainer.fit(task, numbered(), numbered());
    group_.barrier();
    return result;
  };
  Line replicas;
  const FitResult expected = fit(replicas, options_of("3ep", "replicas", false));
  Line shared;
  const FitResult result = fit(shared, options_of("3ep", "shared", true));
  EXPECT_TRUE(at::equal(shared.last, replicas.last));
  EXPECT_EQ(*find_metric(result.metrics, "train_loss"),
            *find_metric(expected.metrics, "train_loss"));
  Line parts;
  fit(parts, options_of("4ba", "parts", true));
  fit(parts, options_of("9ba", "parts", false));
  fit(parts, options_of("3ep", "parts", true));
  EXPECT_TRUE(at::equal(parts.last, replicas.last));
}

TEST_F(TrainedOneCopy, ClipsAndLeavesOutSteps) {
  NEEDS_COPIES();
  for (const auto algorithm : {GradientClipAlgorithm::kNorm, GradientClipAlgorithm::kValue}) {
    Line tasks[2];
    for (const bool one_copy : {false, true}) {
      const std::string name = std::to_string(static_cast<int>(algorithm));
      TrainerOptions made = options_of("2ep", name + (one_copy ? "-shared" : ""), one_copy);
      made.gradient_accumulation_steps = 2;
      made.gradient_clip_val = algorithm == GradientClipAlgorithm::kNorm ? 1e6 : 1e-2;
      made.gradient_clip_algorithm = algorithm;
      made.non_finite = NonFinite::kSkip;
      tasks[one_copy ? 1 : 0].bad_batch = 2;
      Trainer(made).fit(tasks[one_copy ? 1 : 0], numbered(), numbered());
    }
    EXPECT_TRUE(at::equal(tasks[1].last, tasks[0].last));
  }
}

}  // namespace
}  // namespace lockstep::testing
