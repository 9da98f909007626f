// What Accelerator refuses: options, parts and states that do not fit.
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(AcceleratorTest, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 0}), UsageError);
  Accelerator accelerator;
  const auto prepare = [&] {
    accelerator.prepare(
        torch::data::make_data_loader(sine_rows(9), torch::data::DataLoaderOptions(2).workers(1)));
  };
  EXPECT_SAYS(message_of<UsageError>(prepare), "Accelerator::make_data_loader");
  EXPECT_SAYS(message_of<UsageError>([&] { accelerator.save_state("nowhere"); }),
              "prepare a model and an optimizer");
}

TEST_F(AcceleratorTest, WhatWouldTakeWrongGradientsIsRefused) {
  for (const AcceleratorOptions& options : {AcceleratorOptions{.precision = Precision::kFloat16},
                                            AcceleratorOptions{.gradient_accumulation_steps = 2},
                                            AcceleratorOptions{.non_finite = NonFinite::kSkip}}) {
    Accelerator accelerator(options);
    torch::nn::Sequential net = make_tanh_net();
    auto model = accelerator.prepare(net);
    const auto backward = [&] { accelerator.backward(model(at::ones({2, 4})).sum()); };
    EXPECT_SAYS(message_of<UsageError>(backward), "need an optimizer that is prepared");
  }
  Accelerator accelerator;
  const ProcessGroup alone = group_.new_group({0});
  NEEDS_RANKS(2);
  if (rank_ > 0) return;
  const auto prepare = [&] {
    accelerator.prepare(DataLoader(sine_rows(9), {.process_group = alone}));
  };
  EXPECT_SAYS(message_of<UsageError>(prepare), "the data loader was made for 1 of ");
}

// A loss with a weight is of one of them, and it is not known of which.
TEST_F(AcceleratorTest, TwoModelsNeedBatchesOfOneSize) {
  NEEDS_RANKS(2);
  const std::int64_t even = std::int64_t{4} * world_size_;
  for (const std::int64_t rows : {even, even + 1}) {
    Accelerator accelerator;
    auto first = accelerator.prepare(make_tanh_net());
    auto second = accelerator.prepare(make_tanh_net());
    auto loader = accelerator.make_data_loader(sine_rows(rows), {.batch_size = 2});
    accelerator.make_data_loader(sine_rows(even + 1), {.batch_size = 2});  // For evaluations.
    int batches = 0;
    const auto train = [&] {
      for (auto& batch : loader) {
        ++batches;
        accelerator.backward(first(batch.data).sum());
        accelerator.backward(second(batch.data).sum());
      }
    };
    if (rows == even) {
      EXPECT_NO_THROW(train());
      continue;
    }
    // With the first batch.
    EXPECT_SAYS(message_of<UsageError>(train),
                "2 models are prepared, and the batches of an epoch differ in size");
    EXPECT_EQ(batches, 1);
  }
}

TEST_F(AcceleratorTest, TwoModelsWhoseLossesTheProgramWeighsMayHaveAnyBatches) {
  NEEDS_RANKS(2);
  Accelerator accelerator;
  auto first = accelerator.prepare(make_tanh_net());
  auto second = accelerator.prepare(make_tanh_net());
  auto loader =
      accelerator.make_data_loader(sine_rows(std::int64_t{4} * world_size_ + 1), {.batch_size = 2});
  std::int64_t samples = 0;
  for (auto& batch : loader) {
    const std::int64_t own = loader.position()->samples();
    for (auto* const model : {&first, &second}) {
      model->ddp().backward((*model)(batch.data).mean(), {.weight = static_cast<double>(own)});
    }
    samples += own;
  }
  EXPECT_EQ(accelerator.reduce(at::scalar_tensor(samples, at::kLong)).item<std::int64_t>(),
            std::int64_t{4} * world_size_ + 1);
}

TEST_F(AcceleratorState, LoadsOnlyIntoWhatWasSaved) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .directory = path_});
  AcceleratedTraining training(accelerator);
  training.train(1, 2);
  {
    const auto accumulating = accelerator.accumulate();
    accelerator.backward(training.model(at::ones({1, 4})).sum());
    EXPECT_SAYS(message_of<UsageError>([&] { accelerator.save_state(); }),
                "gradients are being accumulated");
  }
  {
    const auto accumulating = accelerator.accumulate();
    accelerator.backward(training.model(at::ones({1, 4})).sum());
    training.optimizer.step();
  }
  accelerator.save_state();
  accelerator.wait_for_everyone();

  Accelerator other({.directory = path_});
  torch::nn::Sequential net = make_tanh_net();
  torch::optim::Adam adam(net->parameters(), 0.02);
  auto prepared = other.prepare(net, adam);
  EXPECT_SAYS(message_of<UsageError>([&] { other.load_state(); }), "prepare and register the same");
  auto loader = other.make_data_loader(sine_rows(40), {.batch_size = 2});
  torch::optim::StepLR step_lr(adam, 3, 0.7);
  auto scheduler = other.prepare(step_lr);
  EXPECT_SAYS(message_of<UsageError>([&] { other.load_state(); }), "a dataset of 41 samples");
  EXPECT_SAYS(
      message_of<UsageError>([&] { accelerator.register_for_checkpointing("seen", TensorDict{}); }),
      "is registered already");
  const TensorDict twins{{"mean", at::zeros({1})}, {"mean", at::ones({1})}};
  EXPECT_SAYS(message_of<UsageError>([&] { accelerator.register_for_checkpointing("my", twins); }),
              "two tensors named 'mean'");
  other.wait_for_everyone();
}

TEST_F(AcceleratorState, WhatLoadStateRefusesChangesNothing) {
  Accelerator saving({.directory = path_});
  AcceleratedTraining saved(saving);
  saved.train(1, 2);
  saving.save_state();
  saving.wait_for_everyone();

  struct Stubborn {
    TensorDict state_dict() const { return {{"a", at::ones({1})}}; }
    void load_state_dict(const TensorDict&) const {
      if (refuses) throw Error("no");
    }
    bool refuses = false;
  };
  // What it throws, after a look at all that must be as before.
  const auto load = [&](Accelerator& accelerator, AcceleratedTraining& training) {
    const Tensors before = copies_of(training.net);
    const at::Tensor average = training.average.state_dict().back().second.clone();
    const at::Tensor seen = training.seen.clone();
    const DataCursor cursor = training.loader.cursor();
    try {
      accelerator.load_state();
    } catch (const Error&) {
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(training.net->parameters()[i], before[i]));
      }
      EXPECT_TRUE(at::equal(training.average.state_dict().back().second, average));
      EXPECT_TRUE(at::equal(training.seen, seen));
      EXPECT_EQ(training.loader.cursor(), cursor);
      accelerator.wait_for_everyone();
      throw;
    }
  };
  const auto refused = [&](Accelerator& accelerator, AcceleratedTraining& training) {
    return message_of<Error>([&] { load(accelerator, training); });
  };
  {
    Accelerator other({.directory = path_});
    AcceleratedTraining training(other);
    Stubborn more;
    other.register_for_checkpointing("more", more);
    EXPECT_SAYS(refused(other, training), "nothing was saved under 'more'");
  }
  {
    Accelerator other({.directory = path_});
    AcceleratedTraining training(other);
    training.train(1, 3);
    EXPECT_SAYS(refused(other, training), "the scheduler has made 3 steps, more than the 2");
  }
  Stubborn stubborn;
  saving.register_for_checkpointing("more", stubborn);
  saved.train(2, 1);
  saving.save_state();
  saving.wait_for_everyone();
  {
    Accelerator other({.directory = path_});
    AcceleratedTraining training(other);
    EXPECT_SAYS(refused(other, training), "it holds the state of 'more', which is not registered");
    Stubborn refusing{.refuses = rank_ == world_size_ - 1};
    other.register_for_checkpointing("more", refusing);
    expect_failure_of<Error>(world_size_ - 1, "no", [&] { load(other, training); });
    refusing.refuses = false;
    EXPECT_TRUE(other.load_state());
    EXPECT_EQ(other.steps(), 3);
  }
  {
    Accelerator other({.directory = path_});
    AcceleratedTraining training(other);
    expect_failure_of<UsageError>(0, "of another run", [&] { other.save_state(); });
    other.wait_for_everyone();
  }
}

TEST_F(AcceleratorState, RegisteredTensorsAreNeitherBroadcastNorConverted) {
  const auto with = [&](const at::Tensor& registered, const auto& action) {
    Accelerator accelerator({.directory = path_});
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto prepared = accelerator.prepare(net, sgd);
    accelerator.register_for_checkpointing("mine", {{"tensor", registered}});
    action(accelerator);
    accelerator.wait_for_everyone();
  };
  with(at::full({2}, 3.0F), [](Accelerator& accelerator) { accelerator.save_state(); });
  for (const at::Tensor& other : {at::zeros({1}), at::zeros({2, 2}), at::zeros({2}, at::kDouble)}) {
    with(other, [](Accelerator& accelerator) {
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.load_state(); }),
                  "of 'mine' 'tensor' was saved as float[2], and is ");
    });
    EXPECT_EQ(other.sum().item<double>(), 0);
  }
  const at::Tensor same = at::zeros({2});
  with(same, [](Accelerator& accelerator) { EXPECT_TRUE(accelerator.load_state()); });
  EXPECT_EQ(same.sum().item<double>(), 6);
}

}  // namespace
}  // namespace lockstep::testing
