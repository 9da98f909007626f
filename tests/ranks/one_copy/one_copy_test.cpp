// One copy of parameters and optimizer state on a machine. The oracle are replicas: the same model
// and optimizer without the option, to the bit.
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/os/memory/freed_memory.h"
#include "tests/ranks/on_machines.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(OneCopy, HasTheBitsOfReplicasWithAnyOptimizer) {
  NEEDS_COPIES();
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
  expect_bits_of_replicas<LAMB>(LAMBOptions{.lr = 0.1, .maximize = true});
}

TEST_F(OneCopy, HasTheBitsOfReplicasInAnyDtype) {
  NEEDS_COPIES();
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    expect_bits_of_replicas<AdamW>(AdamWOptions{.lr = 0.1}, dtype);
    expect_bits_of_replicas<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}, dtype);
    expect_bits_of_replicas<Lion>(LionOptions{.lr = 0.1}, dtype);
    expect_bits_of_replicas<LAMB>(LAMBOptions{.lr = 0.1}, dtype);
  }
  expect_bits_of_replicas<LAMB>(LAMBOptions{.lr = 0.1, .state_dtype = at::kFloat}, at::kBFloat16);
  expect_bits_of_replicas<AdamW>(AdamWOptions{.lr = 0.1, .state_dtype = at::kFloat}, at::kBFloat16);
}

TEST_F(OneCopy, OfDtypesStridesAndGroupsOfAllKinds) {
  NEEDS_COPIES();
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

// Parts of a parameter would be updated in different ways, and no comparison of ranks would see it.
TEST_F(OneCopy, OptimizersThatDifferAreAnErrorOnAllRanks) {
  NEEDS_COPIES();
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
  // The steps are as many.
  if (rank_ == 1) optimizer.load_state_dict(other.state_dict());
  refused(optimizer);
}

TEST_F(OneCopy, TakesWeightsOfOtherStrides) {
  NEEDS_COPIES();
  const auto make = [&] {
    torch::nn::Linear module(300, 300);
    const at::NoGradGuard no_grad;
    module->weight.copy_(at::arange(90'000).sin().view({300, 300}));
    module->bias.zero_();
    return module;
  };
  using Linear = DistributedDataParallel<torch::nn::LinearImpl>;
  const std::function<at::Tensor(const at::Tensor&)> ways[] = {
      [](const at::Tensor& weight) { return weight.t().contiguous().t(); },
      [](const at::Tensor& weight) { return weight.t(); }};
  const at::Tensor inputs = at::arange(600).cos().view({2, 300}) * (rank_ + 1);
  for (const auto& change : ways) {
    Linear model(make().ptr(), {.one_copy_per_machine = true});
    Linear replica(make().ptr(), {});
    SGD optimizer(model->parameters(), {.lr = 0.1});
    SGD other(replica->parameters(), {.lr = 0.1});
    for (Linear* const one : {&model, &replica}) {
      one->module()->weight.set_data(change(one->module()->weight));
      one->forward(inputs).pow(2).sum().backward();
    }
    optimizer.step();
    other.step();
    EXPECT_TRUE(same_bits(model->weight, replica->weight));
  }
}

// Changes of all ranks, in each way that there is.
TEST_F(OneCopy, ChangesOfAllRanksCount) {
  NEEDS_COPIES();
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
  NEEDS_COPIES();
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
  NEEDS_COPIES();
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Of this process alone, in MB.
double anonymous_memory() {
  std::ifstream lines("/proc/self/smaps_rollup");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Anonymous:")) return std::stod(line.substr(10)) / 1024;
  }
  return 0;
}

// In blocks that malloc would keep: a rank's own parameters are gone when the copy is there.
TEST_F(OneCopy, GivesBackTheMemoryOfOwnParameters) {
  NEEDS_COPIES();
  constexpr double kMegabytes = 64;
  const Sizes sizes(64, (std::int64_t{1} << 20) / 4);
  release_freed_memory();
  const double before = anonymous_memory();
  Factors module(sizes);
  EXPECT_GT(anonymous_memory(), before + kMegabytes / 2);
  const Model model(module.ptr(), {.one_copy_per_machine = true});
  EXPECT_LT(anonymous_memory(), before + kMegabytes / 2);
}
#endif

TEST_F(OneCopy, ParametersOutliveTheWrapper) {
  NEEDS_COPIES();
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
  NEEDS_COPIES();
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
  NEEDS_COPIES();
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
  NEEDS_COPIES();
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
  NEEDS_COPIES();
  const auto refusal = [&](DistributedDataParallelOptions options) {
    options.one_copy_per_machine = true;
    return message_of<UsageError>([&] { Model(module_of({3}).ptr(), options); });
  };
  EXPECT_SAYS(refusal({.exchange_dtype = at::kHalf}), "one_copy_per_machine with exchange_dtype");
  EXPECT_SAYS(refusal({.measure_exchange = true}), "one_copy_per_machine with measure_exchange");
  EXPECT_SAYS(refusal({.comm_hook = std::make_shared<QuantizeHook>()}),
              "one_copy_per_machine with comm_hook");

  Model another = model_of(true);
  backward(another, 1);

  Factors tied = module_of({4, 4});
  tied->factors[1].set_data(tied->factors[0].detach());
  EXPECT_SAYS(message_of<UsageError>([&] { Model(tied.ptr(), {.one_copy_per_machine = true}); }),
              "parameter 'p1' shares memory with 'p0'");
}

TEST_F(OneCopy, IsRefusedWhereRanksDoNotShareMemory) {
  NEEDS_RANKS(2);
  if (group_.backend_name() != "gloo") GTEST_SKIP() << "some ranks share memory, or no two can";
  EXPECT_SAYS(message_of<UsageError>([] { model_of(true); }), "backend shm, or hierarchical");
}

TEST_F(OneCopy, WhereEachRankIsOnAMachineOfItsOwnModelsAreOrdinary) {
  NEEDS_RANKS(2);
  const OnMachines apart(group_, "0123");
  Model model(module_of(kParameterSizes).ptr(),
              {.process_group = apart.group(), .one_copy_per_machine = true});
  Model replica(module_of(kParameterSizes).ptr(), {.process_group = apart.group()});
  backward(model, 1);
  backward(replica, 1);
  for (std::size_t i = 0; i < kParameterSizes.size(); ++i) {
    EXPECT_TRUE(same_bits(model->factors[i].grad(), replica->factors[i].grad())) << i;
  }
}

// On one machine barriers have the names of models.
TEST_F(OneCopy, MachinesThatStepOtherModelsAreRefused) {
  NEEDS_COPIES();
  if (group_.backend_name() != "hierarchical") GTEST_SKIP() << "needs several machines";
  for (const Sizes& sizes : {kParameterSizes, Sizes(90, 1)}) {
    Model first = model_of(true);
    Model second = model_of(true, sizes);
    AdamW of_first(first->parameters(), {.lr = 0.1});
    AdamW of_second(second->parameters(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      backward(first, step);
      second(factors_of(step, sizes)).backward();
      const bool is_swapped = step == 1 && rank_ == world_size_ - 1;
      AdamW& next = is_swapped ? of_second : of_first;
      if (step == 1) {
        EXPECT_SAYS(message_of<UsageError>([&] { next.step(); }),
                    "step the same models in the same order");
        continue;
      }
      next.step();
      of_second.step();
      of_first.zero_grad();
      of_second.zero_grad();
    }
  }
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
