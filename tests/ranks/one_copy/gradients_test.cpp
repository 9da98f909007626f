// What becomes of gradients with one copy per machine: accumulated, weighed, clipped, unscaled.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(OneCopy, AccumulatesUnderNoSync) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const auto run = [&](Model& of, AdamW& by) {
      by.zero_grad();
      for (int part = 0; part < 3; ++part) {
        const auto guard = of.no_sync(part < 2);
        backward(of, 3 * step + part);
      }
      by.step();
    };
    run(model, optimizer);
    run(replica, other);
    expect_same_model(model, replica);
  }
}

TEST_F(OneCopy, AveragedGradientsAreThoseOfReplicas) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {});
  for (int step = 0; step < 3; ++step) {
    replica->zero_grad();
    backward(model, step);
    backward(replica, step);
    expect_same_bits(model.averaged_gradients(), replica.averaged_gradients());
    expect_same_bits(model.averaged_gradients(), replica.averaged_gradients());
    optimizer.step();
    for (const at::Tensor& gradient : model.averaged_gradients()) EXPECT_FALSE(gradient.defined());
  }
}

TEST_F(OneCopy, GradCannotBeTakenForAnAverage) {
  NEEDS_COPIES();
  Model model = model_of(true);
  const Tensors before = model_of(false).parameters();
  backward(model, 1);
  EXPECT_TRUE(model->factors[0].grad().is_meta());
  EXPECT_THROW(model->factors[0].grad().sum().item<double>(), c10::Error);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  EXPECT_THROW(optimizer.step(), c10::Error);
  expect_same_bits(model.parameters(), before);
  const std::string error = message_of<UsageError>([&] { backward(model, 2); });
  EXPECT_SAYS(error, "the gradient of 'p");
  EXPECT_SAYS(error, "call step() of an optimizer of Lockstep");
}

TEST_F(OneCopy, GradRefusesWhatWouldChangeNothing) {
  NEEDS_COPIES();
  const std::function<void(at::Tensor&)> refused[] = {
      [](at::Tensor& gradient) { gradient.mul_(0.5); },
      [](at::Tensor& gradient) { gradient.div_(2); },
      [](at::Tensor& gradient) { gradient.clamp_(-1, 1); },
      [](at::Tensor& gradient) { gradient.data().clamp_(-1, 1); },
      [](at::Tensor& gradient) { gradient.add_(at::ones_like(gradient, at::kFloat), 0.1); },
      [](at::Tensor& gradient) { gradient.norm(); }};
  const std::function<at::Tensor(const at::Tensor&)> replacements[] = {
      [](const at::Tensor& gradient) { return gradient * 0.5; },
      [](const at::Tensor& gradient) { return gradient.clone(); }};
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  const Tensors parameters = model->parameters();
  int step = 0;
  for (const auto& change : refused) {
    optimizer.zero_grad();
    backward(model, step);
    EXPECT_THROW(change(model->factors[0].mutable_grad()), c10::Error);
    EXPECT_THROW(torch::nn::utils::clip_grad_value_(parameters, 1.0), c10::Error);
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(parameters, 1.0, 0.0), c10::Error);
    optimizer.step();
    train(replica, other, step, step + 1);
    expect_same_model(model, replica);
    ++step;
  }
  for (const auto& replace : replacements) {
    backward(model, step);
    at::Tensor& gradient = model->factors[0].mutable_grad();
    gradient = replace(gradient);
    EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "was replaced by a tensor");
    expect_same_model(model, replica);
    optimizer.zero_grad();
  }
  train(model, optimizer, step, step + 2);
  train(replica, other, step, step + 2);
  expect_same_model(model, replica);
}

// zero_grad(false) leaves another tensor over the placeholder's memory.
TEST_F(OneCopy, AnotherCopyOfTheModelForgetsThePlaceholders) {
  NEEDS_COPIES();
  const Factors module = module_of(kParameterSizes);
  for (int round = 0; round < 2; ++round) {
    Model model(module.ptr(), {.one_copy_per_machine = true});
    AdamW optimizer(model->parameters(), {.lr = 0.1});
    train(model, optimizer, 0, 1);
    backward(model, 1);
    model->zero_grad(/*set_to_none=*/false);
  }
}

TEST_F(OneCopy, AllRanksClipByTheSameValues) {
  NEEDS_COPIES();
  if (world_size_ == 1) GTEST_SKIP() << "one rank alone";
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  const std::function<void()> clippings[] = {
      [&] { clip_grad_norm_(model->parameters(), rank_ == 0 ? 1e-3 : 2e-3); },
      [&] {
        clip_grad_norm_(model->parameters(), 1e9);
        clip_grad_value_(model->parameters(), rank_ == 0 ? 1e-3 : 2e-3);
      }};
  int step = 0;
  for (const auto& clip : clippings) {
    backward(model, ++step);
    clip();
    EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }),
                "clipped or unscaled by other values on rank");
    EXPECT_SAYS(message_of<UsageError>([&] { model.averaged_gradients(); }), "than on rank 0");
    optimizer.zero_grad();
  }
  train(model, optimizer, step, step + 1);
}

TEST_F(OneCopy, GradientsAreGivenUpByZeroGrad) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  const std::function<void()> ways[] = {[&] { optimizer.zero_grad(); },
                                        [&] { model->zero_grad(/*set_to_none=*/false); },
                                        [&] { model.zero_grad(); }};
  for (int step = 1; const auto& give_up : ways) {
    backward(model, 2 * step);
    give_up();
    optimizer.step();  // has nothing to do
    backward(model, 2 * step + 1);
    optimizer.step();
    train(replica, other, 2 * step + 1, 2 * step + 2);
    expect_same_model(model, replica);
    ++step;
  }
}

TEST_F(OneCopy, GradientsOfNoSyncAloneAreRefused) {
  NEEDS_COPIES();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {});
  train(model, optimizer, 0, 1);
  optimizer.zero_grad();
  {
    const auto guard = model.no_sync();
    backward(model, 1);
  }
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "is this rank's alone");
  EXPECT_SAYS(message_of<UsageError>([&] { clip_grad_norm_(model->parameters(), 1); }),
              "is this rank's alone");
  EXPECT_SAYS(message_of<UsageError>([&] { model.averaged_gradients(); }), "is this rank's alone");
  optimizer.zero_grad();
  train(model, optimizer, 2, 3);
}

TEST_F(OneCopy, ClipsByTheNormOfTheAverages) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  for (int step = 0; step < 4; ++step) {
    const double most = step % 2 == 0 ? 0.5 : 1e9;
    optimizer.zero_grad();
    other.zero_grad();
    backward(model, step);
    backward(replica, step);
    const double norm = clip_grad_norm_(model->parameters(), most);
    // LibTorch's own norm is of float32 sums.
    double squares = 0;
    for (const at::Tensor& average : replica.averaged_gradients()) {
      if (average.defined()) squares += average.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm);
    EXPECT_NEAR(norm, clip_grad_norm_(replica->parameters(), most), 1e-5 * norm);
    EXPECT_NEAR(get_total_norm(model->parameters()), std::min(norm, most), 1e-5 * norm);
    const Tensors averages = model.averaged_gradients();
    const Tensors expected = replica.averaged_gradients();
    for (std::size_t i = 0; i < averages.size(); ++i) {
      ASSERT_EQ(averages[i].defined(), expected[i].defined()) << i;
      if (!averages[i].defined()) continue;
      EXPECT_TRUE(at::allclose(averages[i], expected[i], 1e-5, 1e-9)) << i;
      const bool is_clipped = step % 2 == 0;
      EXPECT_TRUE(is_clipped || same_bits(averages[i], expected[i])) << i;
    }
    optimizer.step();
    other.step();
    for (std::size_t i = 0; i < averages.size(); ++i) {
      EXPECT_TRUE(at::allclose(model->factors[i], replica->factors[i], 1e-4, 1e-5)) << i;
    }
    EXPECT_TRUE(same_bits_everywhere(model.parameters()));
  }
  backward(model, 4);
  EXPECT_SAYS(
      message_of<UsageError>([&] { clip_grad_norm_(model->parameters(), 1, {.norm_type = 1}); }),
      "norm_type must be 2");
  clip_grad_norm_(model->parameters(), 1);
  if (rank_ == 0) model.zero_grad();
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "was given up on some ranks");
}

TEST_F(OneCopy, OptimizersStepAsIfNothingWasClippedWhereNothingIs) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    for (const auto& [of, by] : {std::pair{&model, &optimizer}, {&replica, &other}}) {
      by->zero_grad();
      backward(*of, step);
      clip_grad_norm_((*of)->parameters(), 1e9);
      by->step();
    }
    expect_same_model(model, replica);
  }
}

// The memory of a step's gradients is that of the next one's: what a step frees has room for it.
TEST_F(OneCopy, GradientsAreReusedFromStepToStep) {
  NEEDS_COPIES();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  const auto place_of = [&](std::int64_t elements) {
    return group_.allocate_tensor(elements, at::kFloat).const_data_ptr();
  };
  std::vector<std::pair<const void*, const void*>> places;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    backward(model, step);
    if (step == 3) clip_grad_norm_(model->parameters(), 1);
    optimizer.step();
    places.emplace_back(place_of(kParameterSizes[3]), place_of(kParameterSizes[7]));
  }
  for (const auto& place : places) EXPECT_EQ(place, places.front());
}

// Between forward and backward, what has the size of a gradient takes memory of gradients.
TEST_F(OneCopy, KeptTensorsOfTheSizeOfAGradientLeaveRoomForGradients) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  const at::Tensor loss = model(factors_of(1));
  Tensors clones;
  for (int i = 0; i < 150; ++i) clones.push_back(model->factors[3].detach().clone());
  loss.backward();
  optimizer.step();
  train(replica, other, 1, 2);
  expect_same_model(model, replica);
}

// Rank 2 has none, the others grow with rank and step; in micro-batches each has its own.
TEST_F(OneCopy, WeightedPassesHaveTheBitsOfReplicas) {
  NEEDS_COPIES();
  for (const at::ScalarType of_loss : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(of_loss));
    Model model = model_of(true);
    Model replica = model_of(false);
    AdamW optimizer(model->parameters(), {.lr = 0.1});
    AdamW other(replica->parameters(), {.lr = 0.1});
    for (int step = 0; step < 4; ++step) {
      const auto run = [&](Model& of, AdamW& by) {
        by.zero_grad();
        const int passes = step % 2 == 0 ? 1 : 2;
        for (int pass = 0; pass < passes; ++pass) {
          const auto guard = of.no_sync(pass + 1 < passes);
          // 4097 and its multiples are no bfloat16.
          const double weight = rank_ == 2 ? 0 : (rank_ + 1) * (step + 1) * (pass == 0 ? 1 : 4097);
          of.backward(of(factors_of(2 * step + pass)).to(of_loss), {.weight = weight});
        }
        by.step();
      };
      run(model, optimizer);
      run(replica, other);
      expect_same_model(model, replica);
    }
    expect_same_state(optimizer, other);
  }
}

TEST_F(OneCopy, APassOfSomeRanksThatReachesNothingTakesPart) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  SGD optimizer(model->parameters(), {.lr = 0.1});
  SGD other(replica->parameters(), {.lr = 0.1});
  const at::Tensor alone = at::ones({}).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    const auto run = [&](Model& of, SGD& by) {
      by.zero_grad();
      const at::Tensor loss = of(factors_of(step));
      of.backward(rank_ == 1 ? alone * 2 : loss, {.weight = rank_ == 1 ? 0.0 : 3.0});
      by.step();
    };
    run(model, optimizer);
    run(replica, other);
    expect_same_model(model, replica);
  }
}

// A rank that gives its gradients up does not know any more what they weigh.
TEST_F(OneCopy, GradientsWithWeightsAreGivenUpByAllRanksOrNone) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  SGD optimizer(model->parameters(), {.lr = 0.1});
  model.backward(model(factors_of(1)), {.weight = 1.0 + rank_});
  if (rank_ == 1) model.zero_grad();
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }),
              "weights of backward passes on rank 1 are other than on rank 0");
  model.zero_grad();
  train(model, optimizer, 2, 3);
}

TEST_F(OneCopy, GradientNormIsThatOfTheAverages) {
  NEEDS_COPIES();
  const auto build = [&](bool one_copy) {
    return Model(module_of(kParameterSizes).ptr(),
                 {.gradient_norm = true, .one_copy_per_machine = one_copy});
  };
  Model model = build(true);
  Model replica = build(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  EXPECT_SAYS(message_of<UsageError>([&] { model.gradient_norm(); }), "before a backward pass");
  for (int step = 0; step < 3; ++step) {
    for (const auto& [of, by] : {std::pair{&model, &optimizer}, {&replica, &other}}) {
      by->zero_grad();
      backward(*of, step);
    }
    const double norm = model.gradient_norm();
    EXPECT_NEAR(norm, replica.gradient_norm(), 1e-12 * norm);
    EXPECT_EQ(norm, model.gradient_norm());
    EXPECT_TRUE(same_bits_everywhere({at::scalar_tensor(norm, at::kDouble)}));
    optimizer.step();
    other.step();
    expect_same_model(model, replica);
    EXPECT_EQ(norm, model.gradient_norm());
  }
  backward(model, 4);
  optimizer.step();
  EXPECT_SAYS(message_of<UsageError>([&] { model.gradient_norm(); }), "before a backward pass");
}

TEST_F(OneCopy, GradientNormIsThatOfBackwardAlsoAfterClipping) {
  NEEDS_COPIES();
  const auto norms_of = [&](bool one_copy) {
    Model model(module_of(kParameterSizes).ptr(),
                {.gradient_norm = true, .one_copy_per_machine = one_copy});
    std::vector<double> norms;
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      backward(model, step);
      if (step == 0) {
        clip_grad_norm_(model->parameters(), 1e-3);
      } else {
        clip_grad_value_(model->parameters(), 1e-3);
      }
      norms.push_back(model.gradient_norm());
    }
    return norms;
  };
  const std::vector<double> norms = norms_of(true);
  const std::vector<double> expected = norms_of(false);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    EXPECT_NEAR(norms[i], expected[i], 1e-6 * expected[i]) << i;
  }
}

TEST_F(OneCopy, ClampsTheAverages) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  for (int step = 0; step < 4; ++step) {
    for (const auto& [of, by] : {std::pair{&model, &optimizer}, {&replica, &other}}) {
      by->zero_grad();
      backward(*of, step);
      clip_grad_value_((*of)->parameters(), 0.25);
    }
    expect_same_bits(model.averaged_gradients(), replica.averaged_gradients());
    optimizer.step();
    other.step();
    expect_same_model(model, replica);
  }
}

/// Of one GradScaler for each model.
class ScaledOneCopy : public OneCopy {
 protected:
  struct Scaled {
    Scaled(bool one_copy, const GradScalerOptions& options, at::ScalarType dtype = at::kFloat)
        : model(model_of(one_copy, kParameterSizes, dtype)), scaler(options) {}
    Model model;
    AdamW optimizer{model->parameters(), {.lr = 0.1}};
    GradScaler scaler;
  };

  /// Whether the step was made. `factor` multiplies the loss of the last rank.
  bool step(Scaled& by, int number, double factor, double most_norm) const {
    by.optimizer.zero_grad();
    const at::Tensor loss = by.model(factors_of(number)) * (rank_ + 1 == world_size_ ? factor : 1);
    by.scaler.scale(loss).backward();
    if (number % 2 == 0) by.scaler.unscale_(by.optimizer);
    if (number % 2 == 0) clip_grad_norm_(by.model->parameters(), most_norm);
    const bool is_made = by.scaler.step(by.optimizer);
    by.scaler.update();
    return is_made;
  }
};

TEST_F(ScaledOneCopy, HasTheBitsAndScalesOfReplicas) {
  NEEDS_COPIES();
  for (const double scale : {1024.0, 1000.0}) {
    SCOPED_TRACE(scale);
    const GradScalerOptions options{.init_scale = scale, .growth_interval = 2};
    Scaled shared(true, options);
    Scaled replica(false, options);
    const double infinity = std::numeric_limits<double>::infinity();
    const double factors[] = {1, infinity, 1, 1, std::nan(""), 1e39, 1, 1};
    for (int number = 0; const double factor : factors) {
      SCOPED_TRACE(number);
      const bool is_made = step(shared, number, factor, 1e9);
      EXPECT_EQ(is_made, step(replica, number, factor, 1e9));
      EXPECT_EQ(is_made, factor == 1);
      EXPECT_EQ(shared.scaler.get_scale(), replica.scaler.get_scale());
      expect_same_model(shared.model, replica.model);
      ++number;
    }
    expect_same_state(shared.optimizer, replica.optimizer);
    EXPECT_TRUE(same_bits_everywhere(shared.model.parameters()));
  }
}

TEST_F(ScaledOneCopy, ClipsWhatWasUnscaled) {
  NEEDS_COPIES();
  Scaled shared(true, {.init_scale = 1024});
  Scaled replica(false, {.init_scale = 1024});
  for (int number = 0; number < 4; number += 2) {
    EXPECT_TRUE(step(shared, number, 1, 0.5));
    EXPECT_TRUE(step(replica, number, 1, 0.5));
    for (std::size_t i = 0; i < kParameterSizes.size(); ++i) {
      EXPECT_TRUE(at::allclose(shared.model->factors[i], replica.model->factors[i], 1e-4, 1e-5));
    }
  }
}

TEST_F(ScaledOneCopy, RefusesWhatItRefusesOfReplicas) {
  NEEDS_COPIES();
  Scaled shared(true, {});
  shared.scaler.scale(shared.model(factors_of(1)));
  EXPECT_SAYS(message_of<UsageError>([&] { shared.scaler.step(shared.optimizer); }),
              "no parameter of the optimizer has a gradient");
  Scaled half(true, {}, at::kHalf);
  half.scaler.scale(half.model(factors_of(1))).backward();
  EXPECT_SAYS(message_of<UsageError>([&] { half.scaler.step(half.optimizer); }), "has dtype Half");
}

}  // namespace
}  // namespace lockstep::testing
