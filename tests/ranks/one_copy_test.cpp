// One copy of parameters and optimizer state on a machine. The oracle are replicas: the same model
// and optimizer without the option, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/optimizers.h"
#include "tests/ranks/factors.h"
#include "tests/ranks/fixture.h"

// Where ranks do not all share memory the option is refused.
#define NEEDS_SHARED_MEMORY()                             \
  NEEDS_RANKS(2);                                         \
  if (!lockstep::default_process_group().shares_memory()) \
  GTEST_SKIP() << "needs ranks that share memory"

namespace lockstep::testing {
namespace {

using Model = DistributedDataParallel<FactorsImpl>;

// Below and above what is copied, in parts that no rank has, in one part, in many; odd and prime.
const Sizes kParameterSizes = {3, 0, 1, 150'001, 64, 65, 1009, 70'000, 2};

class OneCopy : public Conformance {
 protected:
  static Factors module_of(const Sizes& sizes, at::ScalarType dtype = at::kFloat) {
    Factors module(sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor start = at::arange(sizes[i], at::kDouble) * (0.1 + static_cast<double>(i));
      module->factors[i].set_data(start.sin().to(dtype));
    }
    return module;
  }
  static Model model_of(bool one_copy, const Sizes& sizes = kParameterSizes,
                        at::ScalarType dtype = at::kFloat) {
    return Model(module_of(sizes, dtype).ptr(), {.one_copy_per_machine = one_copy});
  }

  /// What the gradients of this rank are in a step. One parameter is used by the last rank alone,
  /// one by none.
  Tensors factors_of(int step, const Sizes& sizes = kParameterSizes) const {
    Tensors factors;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool is_left_out = (i == 5 && rank_ != world_size_ - 1) || (i == 6 && step % 2 == 0);
      const at::Tensor factor =
          at::sin(at::arange(sizes[i], at::kDouble) * (rank_ + 1) + step + 0.5);
      factors.push_back(is_left_out ? at::Tensor() : factor);
    }
    return factors;
  }

  static ::testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b) {
    if (a.defined() != b.defined()) return ::testing::AssertionFailure() << "one is undefined";
    if (!a.defined()) return ::testing::AssertionSuccess();
    const at::Tensor left = a.detach().contiguous();
    const at::Tensor right = b.detach().contiguous();
    if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) {
      return ::testing::AssertionFailure() << "of another kind";
    }
    if (left.numel() == 0 ||
        std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "up to " << (left.to(at::kDouble) - right.to(at::kDouble)).abs().max().item<double>();
  }
  static void expect_same_bits(const Tensors& actual, const Tensors& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(same_bits(actual[i], expected[i])) << "tensor " << i;
    }
  }
  void expect_same_model(const Model& model, const Model& replica) const {
    expect_same_bits(model.parameters(), replica.parameters());
  }

  template <class Optimizer>
  static void expect_same_state(const Optimizer& optimizer, const Optimizer& other) {
    const auto state = optimizer.state_dict().toGenericDict().at("state").toGenericDict();
    const auto expected = other.state_dict().toGenericDict().at("state").toGenericDict();
    ASSERT_EQ(state.size(), expected.size());
    for (const auto& item : expected) {
      const auto values = state.at(item.key()).toGenericDict();
      for (const auto& value : item.value().toGenericDict()) {
        SCOPED_TRACE(value.key().toStringRef());
        if (!value.value().isTensor()) continue;
        EXPECT_TRUE(same_bits(values.at(value.key()).toTensor(), value.value().toTensor()));
      }
    }
  }

  void backward(Model& model, int step) const { model(factors_of(step)).backward(); }
  template <class Optimizer>
  void train(Model& model, Optimizer& optimizer, int first, int last) const {
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      backward(model, step);
      optimizer.step();
    }
  }

  template <class Optimizer, class Options>
  void expect_bits_of_replicas(const Options& options, at::ScalarType dtype = at::kFloat) const {
    SCOPED_TRACE(c10::toString(dtype));
    Model model = model_of(true, kParameterSizes, dtype);
    Model replica = model_of(false, kParameterSizes, dtype);
    Optimizer optimizer(model->parameters(), options);
    Optimizer other(replica->parameters(), options);
    for (int step = 0; step < 4; ++step) {
      train(model, optimizer, step, step + 1);
      train(replica, other, step, step + 1);
      expect_same_model(model, replica);
      Options changed = optimizer.options();
      changed.lr *= 0.5;
      optimizer.set_options(changed);
      other.set_options(changed);
    }
    expect_same_state(optimizer, other);
    EXPECT_TRUE(same_bits_everywhere(model.parameters()));
  }
};

TEST_F(OneCopy, HasTheBitsOfReplicasWithAnyOptimizer) {
  NEEDS_SHARED_MEMORY();
  expect_bits_of_replicas<SGD>(SGDOptions{.lr = 0.1});
  expect_bits_of_replicas<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
  expect_bits_of_replicas<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1, .amsgrad = true});
  expect_bits_of_replicas<AdamW>(AdamWOptions{.lr = 0.1, .maximize = true});
  expect_bits_of_replicas<Adagrad>(
      AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.5});
  expect_bits_of_replicas<NAdam>(NAdamOptions{.lr = 0.1});
  expect_bits_of_replicas<RAdam>(RAdamOptions{.lr = 0.1});
  expect_bits_of_replicas<Adamax>(AdamaxOptions{.lr = 0.1});
  expect_bits_of_replicas<Adadelta>(AdadeltaOptions{.lr = 0.1});
  expect_bits_of_replicas<RMSprop>(RMSpropOptions{.lr = 0.1, .momentum = 0.9, .centered = true});
  expect_bits_of_replicas<Lion>(LionOptions{.lr = 0.1});
}

TEST_F(OneCopy, HasTheBitsOfReplicasInAnyDtype) {
  NEEDS_SHARED_MEMORY();
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    expect_bits_of_replicas<AdamW>(AdamWOptions{.lr = 0.1}, dtype);
    expect_bits_of_replicas<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}, dtype);
    expect_bits_of_replicas<Lion>(LionOptions{.lr = 0.1}, dtype);
  }
  expect_bits_of_replicas<AdamW>(AdamWOptions{.lr = 0.1, .state_dtype = at::kFloat}, at::kBFloat16);
}

TEST_F(OneCopy, OfDtypesStridesAndGroupsOfAllKinds) {
  NEEDS_SHARED_MEMORY();
  const auto build = [&](bool one_copy) {
    Factors module = module_of(kParameterSizes);
    module->factors[0].set_data(module->factors[0].to(at::kDouble));
    module->factors[4].set_data(module->factors[4].to(at::kBFloat16));
    module->factors[7].set_data(
        module->factors[7].view({100, 7, 10, 10}).contiguous(at::MemoryFormat::ChannelsLast));
    return Model(module.ptr(), {.one_copy_per_machine = one_copy});
  };
  const auto optimizer_of = [](const Model& model) {
    const Tensors all = model->factors;
    using torch::optim::OptimizerParamGroup;
    return std::make_unique<AdamW>(
        std::vector<OptimizerParamGroup>{
            {{all.begin(), all.begin() + 4}},
            OptimizerParamGroup({all.begin() + 4, all.end()},
                                group_options(AdamWOptions{.lr = 0.5, .amsgrad = true}))},
        AdamWOptions{.lr = 0.25});
  };
  Model model = build(true);
  Model replica = build(false);
  const auto optimizer = optimizer_of(model);
  const auto other = optimizer_of(replica);
  EXPECT_EQ(model->factors[7].strides(), replica->factors[7].strides());
  for (int step = 0; step < 3; ++step) {
    const auto run = [&](Model& of, AdamW& by) {
      by.zero_grad();
      Tensors factors = factors_of(step);
      factors[7] = factors[7].view({100, 7, 10, 10});
      of(factors).backward();
      by.step();
    };
    run(model, *optimizer);
    run(replica, *other);
    expect_same_model(model, replica);
  }
  expect_same_state(*optimizer, *other);
}

TEST_F(OneCopy, AccumulatesUnderNoSync) {
  NEEDS_SHARED_MEMORY();
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
  NEEDS_SHARED_MEMORY();
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
  NEEDS_SHARED_MEMORY();
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

TEST_F(OneCopy, GradientsAreGivenUpByZeroGrad) {
  NEEDS_SHARED_MEMORY();
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
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {});
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

// Parts of a parameter would be updated in different ways, and no comparison of ranks would see it.
TEST_F(OneCopy, OptimizersThatDifferAreAnErrorOnAllRanks) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  Model replica = model_of(false);
  const auto refused = [&](auto& optimizer) {
    backward(model, 1);
    EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "on rank 1 are other than on");
    model.zero_grad();
  };
  AdamW of_other_rates(model->parameters(), {.lr = rank_ == 1 ? 0.1 : 0.2});
  refused(of_other_rates);
  const std::size_t other_parameter = rank_ == 1 ? 7 : 3;
  AdamW of_other_parameters({model->factors[other_parameter]}, {});
  refused(of_other_parameters);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 2);
  train(replica, other, 0, 2);
  expect_same_model(model, replica);
  AdamW loaded_by_one(model->parameters(), {.lr = 0.1});
  if (rank_ == 1) loaded_by_one.load_state_dict(other.state_dict());
  refused(loaded_by_one);
}

TEST_F(OneCopy, TakesWeightsOfOtherStrides) {
  NEEDS_SHARED_MEMORY();
  const auto make = [&] {
    torch::nn::Linear module(300, 300);
    const at::NoGradGuard no_grad;
    module->weight.copy_(at::arange(90'000).sin().view({300, 300}));
    module->bias.zero_();
    return module;
  };
  using Linear = DistributedDataParallel<torch::nn::LinearImpl>;
  Linear model(make().ptr(), {.one_copy_per_machine = true});
  Linear replica(make().ptr(), {});
  SGD optimizer(model->parameters(), {.lr = 0.1});
  SGD other(replica->parameters(), {.lr = 0.1});
  const at::Tensor inputs = at::arange(600).cos().view({2, 300}) * (rank_ + 1);
  for (Linear* const one : {&model, &replica}) {
    one->module()->weight.set_data(one->module()->weight.t().contiguous().t());
    one->forward(inputs).pow(2).sum().backward();
  }
  optimizer.step();
  other.step();
  EXPECT_TRUE(same_bits(model->weight, replica->weight));
}

TEST_F(OneCopy, ClipsByTheNormOfTheAverages) {
  NEEDS_SHARED_MEMORY();
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
  EXPECT_SAYS(message_of<UsageError>([&] { clip_grad_value_(model->parameters(), 1); }),
              "clip_grad_value_ is not supported");
  clip_grad_norm_(model->parameters(), 1);
  if (rank_ == 0) model.zero_grad();
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "was given up on some ranks");
}

TEST_F(OneCopy, OptimizersStepAsIfNothingWasClippedWhereNothingIs) {
  NEEDS_SHARED_MEMORY();
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

TEST_F(OneCopy, GradScalerIsRefused) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {});
  GradScaler scaler;
  scaler.scale(model(factors_of(1))).backward();
  EXPECT_SAYS(message_of<UsageError>([&] { scaler.step(optimizer); }),
              "as with one_copy_per_machine");
}

// Changes of all ranks, in each way that there is.
TEST_F(OneCopy, ChangesOfAllRanksCount) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  const std::function<void(Model&, AdamW&)> ways[] = {
      [](Model&, AdamW&) {},
      [](Model& of, AdamW&) {
        const at::NoGradGuard no_grad;
        of->factors[3].mul_(0.5);
        of->factors[0].fill_(2);
      },
      [](Model& of, AdamW&) { of->factors[7].data().add_(1); },
      [](Model& of, AdamW&) { of->factors[7].set_data(at::ones({70'000}) / 3); },
      [](Model&, AdamW& by) {
        by.state_dict()
            .toGenericDict()
            .at("state")
            .toGenericDict()
            .at(std::int64_t{3})
            .toGenericDict()
            .at("exp_avg")
            .toTensor()
            .zero_();
      },
      [](Model&, AdamW& by) {
        AdamW fresh(by.param_groups()[0].params(), {.lr = 0.3});
        fresh.load_state_dict(by.state_dict());
        by.load_state_dict(fresh.state_dict());
      }};
  for (int step = 0; const auto& change : ways) {
    SCOPED_TRACE(step);
    change(model, optimizer);
    change(replica, other);
    expect_same_model(model, replica);
    for (int more = 0; more < 2; ++more, ++step) {
      train(model, optimizer, step, step + 1);
      train(replica, other, step, step + 1);
      expect_same_model(model, replica);
    }
    expect_same_state(optimizer, other);
  }
}

TEST_F(OneCopy, AChangeOfSomeRanksIsAnErrorOnAllUntilItIsUndone) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 1);
  train(replica, other, 0, 1);
  const at::Tensor kept = model->factors[3].detach().clone();
  if (rank_ == 1) model->factors[3].data()[5].add_(1);
  backward(model, 1);
  const std::string error = message_of<UsageError>([&] { optimizer.step(); });
  EXPECT_SAYS(error, "parameter 'p3' was changed since the last step on rank 1 alone");
  model->factors[3].data().copy_(kept);
  optimizer.step();
  train(replica, other, 1, 2);
  expect_same_model(model, replica);

  model->factors[4].data().fill_(rank_);
  backward(model, 2);
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }),
              "parameter 'p4' was changed since the last step");
}

TEST_F(OneCopy, ChangesStayWithTheRankUntilTheStep) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true, {5, 150'001});
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  ExponentialMovingAverage average(*model);
  const auto train_one = [&] {
    model(Tensors{at::ones({5}), at::ones({150'001})}).backward();
    optimizer.step();
    average.update();
  };
  train_one();
  train_one();
  const at::Tensor kept = model->factors[1].detach().clone();
  // Evaluation by one rank with the averages.
  if (rank_ == 0) {
    const auto guard = average.apply();
    EXPECT_FALSE(same_bits(model->factors[1], kept));
  }
  group_.barrier();
  EXPECT_TRUE(same_bits(model->factors[1], kept));
  train_one();
  EXPECT_TRUE(same_bits_everywhere(model.parameters()));
  EXPECT_FALSE(same_bits(model->factors[1], kept));
}

TEST_F(OneCopy, ParametersOutliveTheWrapper) {
  NEEDS_SHARED_MEMORY();
  Factors module = module_of(kParameterSizes);
  Factors plain = module_of(kParameterSizes);
  auto model = std::make_unique<Model>(
      module.ptr(), DistributedDataParallelOptions{.one_copy_per_machine = true});
  Model replica(plain.ptr());
  auto optimizer = std::make_unique<AdamW>(module->parameters(), AdamWOptions{.lr = 0.1});
  AdamW other(plain->parameters(), {.lr = 0.1});
  train(*model, *optimizer, 0, 2);
  train(replica, other, 0, 2);
  model.reset();
  {
    SCOPED_TRACE("after the wrapper");
    expect_same_bits(module->parameters(), plain->parameters());
  }
  {
    SCOPED_TRACE("as replicas");
    Model again(module.ptr());
    train(again, *optimizer, 2, 4);
    train(replica, other, 2, 4);
    expect_same_bits(module->parameters(), plain->parameters());
  }
  Model shared(module.ptr(), {.one_copy_per_machine = true});
  train(shared, *optimizer, 4, 6);
  train(replica, other, 4, 6);
  {
    SCOPED_TRACE("wrapped again");
    expect_same_bits(module->parameters(), plain->parameters());
  }
  expect_same_state(*optimizer, other);
}

TEST_F(OneCopy, TwoModelsAndTwoOptimizers) {
  NEEDS_SHARED_MEMORY();
  Model first = model_of(true);
  Model second = model_of(true);
  Model first_replica = model_of(false);
  Model second_replica = model_of(false);
  const auto run = [&](Model& one, Model& two) {
    Tensors some = one->factors;
    Tensors rest(some.begin() + 4, some.end());
    some.resize(4);
    some.insert(some.end(), two->factors.begin(), two->factors.end());
    const at::Tensor own = at::ones({3}).requires_grad_();
    some.push_back(own);
    AdamW optimizer(some, {.lr = 0.1});
    SGD other(rest, {.lr = 0.1, .momentum = 0.5});
    for (int step = 0; step < 3; ++step) {
      backward(one, step);
      backward(two, step + 1);
      own.mutable_grad() = at::full({3}, step + 1.0);
      optimizer.step();
      other.step();
      optimizer.zero_grad();
      other.zero_grad();
    }
    return own;
  };
  const at::Tensor own = run(first, second);
  const at::Tensor expected = run(first_replica, second_replica);
  EXPECT_TRUE(same_bits(own, expected));
  expect_same_model(first, first_replica);
  expect_same_model(second, second_replica);
}

TEST_F(OneCopy, AnotherOptimizerTakesTheStateOver) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 2);
  AdamW before(replica->parameters(), {.lr = 0.1});
  train(replica, before, 0, 2);
  AdamW next(model->parameters(), {.lr = 0.2});
  AdamW other(replica->parameters(), {.lr = 0.2});
  train(model, next, 2, 4);
  train(replica, other, 2, 4);
  expect_same_model(model, replica);
  expect_same_state(next, other);
  backward(model, 4);
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }),
              "was taken over by another optimizer");
}

TEST_F(OneCopy, OfOneTensorUnderTwoNames) {
  NEEDS_SHARED_MEMORY();
  const auto build = [&](bool one_copy) {
    Factors module = module_of({150'001, 7});
    module->register_parameter("again", module->factors[0]);
    return Model(module.ptr(), {.one_copy_per_machine = one_copy});
  };
  Model model = build(true);
  Model replica = build(false);
  AdamW optimizer(model.parameters(), {.lr = 0.1});
  AdamW other(replica.parameters(), {.lr = 0.1});
  for (int step = 0; step < 2; ++step) {
    const auto run = [&](Model& of, AdamW& by) {
      of(factors_of(step, {150'001, 7})).backward();
      by.step();
      by.zero_grad();
    };
    run(model, optimizer);
    run(replica, other);
    expect_same_model(model, replica);
  }
}

TEST_F(OneCopy, RefusesWhatItDoesNotSupport) {
  NEEDS_SHARED_MEMORY();
  const auto refusal = [&](DistributedDataParallelOptions options) {
    options.one_copy_per_machine = true;
    return message_of<UsageError>([&] { Model(module_of({3}).ptr(), options); });
  };
  EXPECT_SAYS(refusal({.gradient_norm = true}), "one_copy_per_machine with gradient_norm");
  EXPECT_SAYS(refusal({.exchange_dtype = at::kHalf}), "one_copy_per_machine with exchange_dtype");
  EXPECT_SAYS(refusal({.measure_exchange = true}), "one_copy_per_machine with measure_exchange");
  EXPECT_SAYS(refusal({.comm_hook = std::make_shared<QuantizeHook>()}),
              "one_copy_per_machine with comm_hook");

  Model model = model_of(true);
  EXPECT_SAYS(message_of<UsageError>([&] { model.backward(model(factors_of(1)), {.weight = 2}); }),
              "a weighted backward pass is not supported with one_copy_per_machine");
  Model another = model_of(true);
  backward(another, 1);
  LAMB lamb(another->parameters(), {});
  EXPECT_SAYS(message_of<UsageError>([&] { lamb.step(); }), "LAMB does not support");
  AdamW optimizer(another->parameters(), {});
  optimizer.step();  // the refused step has changed nothing
  EXPECT_TRUE(same_bits_everywhere(another.parameters()));

  Factors tied = module_of({4, 4});
  tied->factors[1].set_data(tied->factors[0].detach());
  EXPECT_SAYS(message_of<UsageError>([&] { Model(tied.ptr(), {.one_copy_per_machine = true}); }),
              "parameter 'p1' shares memory with 'p0'");
}

TEST_F(OneCopy, IsRefusedWhereRanksDoNotShareMemory) {
  NEEDS_RANKS(2);
  if (group_.shares_memory()) GTEST_SKIP() << "ranks share memory";
  EXPECT_SAYS(message_of<UsageError>([] { model_of(true); }), "backend shm, one machine");
}

TEST_F(OneCopy, AskedForOnSomeRanksIsRefused) {
  NEEDS_RANKS(2);
  EXPECT_SAYS(message_of<UsageError>([&] { model_of(rank_ == 0); }), "one_copy_per_machine=");
}

TEST_F(OneCopy, AloneARankHasAnOrdinaryModel) {
  if (world_size_ > 1) GTEST_SKIP() << "needs one rank";
  Model model = model_of(true);
  Model replica = model_of(false);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  AdamW other(replica->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 3);
  train(replica, other, 0, 3);
  expect_same_model(model, replica);
  expect_same_bits(model.averaged_gradients(), replica.averaged_gradients());
}

}  // namespace
}  // namespace lockstep::testing
