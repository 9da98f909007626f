#include "lockstep/optim/sharded_optimizer.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/output-archive.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/folder_of_ranks.h"

namespace lockstep::testing {
namespace {

using torch::optim::OptimizerParamGroup;

/// Makes the optimizer itself, or a sharded one where there are options for that.
using MakeShardable = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const Tensors&, const std::optional<ShardedOptimizerOptions>&)>;

template <class Optimizer, class Defaults>
MakeShardable maker_of(const Defaults& defaults) {
  return [defaults](const Tensors& parameters,
                    const auto& sharded) -> std::unique_ptr<torch::optim::Optimizer> {
    if (!sharded) return std::make_unique<Optimizer>(parameters, defaults);
    return std::make_unique<ShardedOptimizer<Optimizer>>(parameters, defaults, *sharded);
  };
}

struct NamedOptimizer {
  const char* name;
  MakeShardable make;
};

const NamedOptimizer kOptimizers[] = {
    {"Sgd",
     maker_of<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true))},
    {"Adam", maker_of<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true))},
    {"AdamW", maker_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01))},
    {"Rmsprop", maker_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5))},
    {"Adagrad", maker_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01))},
    {"LockstepSgd", maker_of<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9})},
    {"LockstepAdamW", maker_of<AdamW>(AdamWOptions{.lr = 0.01, .amsgrad = true})},
    {"LockstepNAdam", maker_of<NAdam>(NAdamOptions{.lr = 0.01})},
    {"LockstepLamb", maker_of<LAMB>(LAMBOptions{.lr = 0.01})},
};

/// Large enough to travel by itself, odd, empty, of one element, of another dtype and of a layout
/// that is not contiguous; the last two are frozen, and never get a gradient.
Tensors make_parameters() {
  Tensors parameters;
  const std::vector<std::vector<std::int64_t>> shapes{{300'007}, {31, 17},     {0},  {1},
                                                      {101},     {2, 3, 5, 7}, {13}, {5}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto numel = c10::multiply_integers(shapes[i]);
    at::Tensor value =
        at::sin(at::arange(numel, at::kFloat) + static_cast<double>(i)).view(shapes[i]);
    if (i == 4) value = value.to(at::kDouble);
    if (i == 5) value = value.contiguous(at::MemoryFormat::ChannelsLast);
    parameters.push_back(value.requires_grad_(i != 6));
  }
  return parameters;
}

void set_gradients(const Tensors& parameters, int step) {
  double phase = step;
  for (const at::Tensor& parameter : parameters) {
    phase += 0.5;
    if (!parameter.requires_grad() || &parameter == &parameters.back()) continue;
    parameter.mutable_grad() = at::cos(parameter.detach() * 3 + phase);
  }
}

void train(torch::optim::Optimizer& optimizer, const Tensors& parameters, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
  }
}

::testing::AssertionResult same(const Tensors& actual, const Tensors& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!at::equal(actual[i], expected[i]) || actual[i].strides() != expected[i].strides()) {
      return ::testing::AssertionFailure() << "parameter " << i << " differs";
    }
  }
  return ::testing::AssertionSuccess();
}

/// As text, tensors with a hash over all bits.
std::string text_of(const c10::IValue& value) {
  std::ostringstream text;
  if (value.isTensor()) {
    const at::Tensor tensor = value.toTensor().contiguous();
    const std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()),
                                 tensor.nbytes());
    text << tensor.dtype() << tensor.sizes() << std::hash<std::string_view>()(bytes);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      text << item.key() << ": {" << text_of(item.value()) << "} ";
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) text << text_of(item) << ", ";
  } else {
    text << value;
  }
  return text.str();
}

std::int64_t state_bytes(const torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += static_cast<std::int64_t>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  return bytes;
}

class Sharded : public Conformance {
 protected:
  /// The kinds of exchange.
  std::vector<ShardedOptimizerOptions> kinds() const {
    return {{.process_group = group_},
            {.process_group = group_, .parameters_as_bucket_view = true}};
  }
};

TEST_F(Sharded, EqualsTheOptimizerItselfBitForBit) {
  for (const NamedOptimizer& optimizer : kOptimizers) {
    for (const ShardedOptimizerOptions& options : kinds()) {
      SCOPED_TRACE(optimizer.name);
      const Tensors whole = make_parameters();
      const Tensors shared = make_parameters();
      const auto reference = optimizer.make(whole, std::nullopt);
      const auto sharded = optimizer.make(shared, options);
      for (int step = 0; step < 4; ++step) {
        train(*reference, whole, step, step + 1);
        train(*sharded, shared, step, step + 1);
        ASSERT_TRUE(same(shared, whole)) << "step " << step;
      }
    }
  }
}

// Other parameters in each step, also such as have a state already.
TEST_F(Sharded, LeavesOutWhatHasNoGradientInAStep) {
  for (const NamedOptimizer& optimizer : kOptimizers) {
    for (const ShardedOptimizerOptions& options : kinds()) {
      SCOPED_TRACE(optimizer.name);
      const Tensors whole = make_parameters();
      const Tensors shared = make_parameters();
      const auto reference = optimizer.make(whole, std::nullopt);
      const auto sharded = optimizer.make(shared, options);
      for (std::size_t step = 0; step < 5; ++step) {
        for (const Tensors* parameters : {&whole, &shared}) {
          set_gradients(*parameters, static_cast<int>(step));
          for (std::size_t i = step % 3; i < parameters->size(); i += 3) {
            (*parameters)[i].mutable_grad().reset();
          }
        }
        reference->step();
        sharded->step();
        ASSERT_TRUE(same(shared, whole)) << "step " << step;
      }
    }
  }
}

TEST_F(Sharded, KeepsTheStateOfItsShareOnly) {
  const Tensors parameters = [] {
    Tensors result;
    for (const int size : {1009, 997, 500, 251, 250, 127, 31, 7, 1}) {
      result.push_back(at::ones({size}).requires_grad_());
    }
    return result;
  }();
  torch::optim::Adam whole(parameters, 0.01);
  ShardedOptimizer<torch::optim::Adam> sharded(parameters, 0.01);
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  whole.step();
  sharded.step();
  const std::int64_t total = state_bytes(whole);
  EXPECT_LE(state_bytes(sharded), total / world_size_ + 2 * 4 * 1009);
  const at::Tensor sum = at::full({1}, state_bytes(sharded), at::kLong);
  group_.all_reduce(sum);
  EXPECT_EQ(sum.item().toLong(), total);
  for (const at::Tensor& parameter : parameters) {
    EXPECT_EQ(sharded.keeps_state_of(parameter),
              sharded.state().count(parameter.unsafeGetTensorImpl()) == 1);
  }
}

TEST_F(Sharded, AStateThatIsMadeAtConstructionIsSharedOutToo) {
  const Tensors parameters = make_parameters();
  const ShardedOptimizer<torch::optim::Adagrad> sharded(parameters, 0.01);
  const at::Tensor states = at::full({1}, static_cast<double>(sharded.state().size()));
  group_.all_reduce(states);
  EXPECT_EQ(states.item().toLong(), static_cast<std::int64_t>(parameters.size()));
}

TEST_F(Sharded, TakesGroupsWithTheirOptionsAndNewLearningRates) {
  const auto run = [&](auto make) {
    const Tensors parameters = make_parameters();
    const std::vector<OptimizerParamGroup> groups{
        {{parameters[0], parameters[1]}, std::make_unique<torch::optim::SGDOptions>(0.2)},
        {{parameters[2], parameters[3], parameters[1]}}};
    auto optimizer = make(groups, torch::optim::SGDOptions(0.1).momentum(0.5).weight_decay(0.01));
    train(optimizer, parameters, 0, 2);
    optimizer.param_groups()[1].options().set_lr(0.05);
    train(optimizer, parameters, 2, 3);
    optimizer.add_param_group(OptimizerParamGroup({parameters[4], parameters[5]}));
    train(optimizer, parameters, 3, 5);
    return parameters;
  };
  const Tensors whole = run(
      [](const auto& groups, const auto& defaults) { return torch::optim::SGD(groups, defaults); });
  const Tensors sharded = run([](const auto& groups, const auto& defaults) {
    return ShardedOptimizer<torch::optim::SGD>(groups, defaults);
  });
  EXPECT_TRUE(same(sharded, whole));
}

TEST_F(Sharded, CallsTheClosureOnceWithAllParametersInSight) {
  const Tensors parameters = make_parameters();
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, 0.1);
  set_gradients(parameters, 0);
  int calls = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    for (const at::Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), parameters.size());
    const at::Tensor sum = parameters[1].sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(loss.defined());
  EXPECT_TRUE(at::allclose(parameters[1], make_parameters()[1] - 0.1));
}

TEST_F(Sharded, AFrozenParameterMayBeThawed) {
  const Tensors whole = make_parameters();
  const Tensors shared = make_parameters();
  torch::optim::Adam reference(whole, 0.01);
  ShardedOptimizer<torch::optim::Adam> sharded(shared, 0.01);
  train(reference, whole, 0, 2);
  train(sharded, shared, 0, 2);
  for (const Tensors* parameters : {&whole, &shared}) {
    at::Tensor((*parameters)[6]).requires_grad_(true);
    at::Tensor((*parameters)[1]).requires_grad_(false);  // its last gradient stays
  }
  train(reference, whole, 2, 4);
  train(sharded, shared, 2, 4);
  EXPECT_TRUE(same(shared, whole));
  EXPECT_FALSE(at::equal(shared[6], make_parameters()[6]));
}

TEST_F(Sharded, ConsolidatesTheStateThatTheOptimizerItselfWouldHave) {
  for (const NamedOptimizer& optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer.name);
    const Tensors whole = make_parameters();
    const Tensors shared = make_parameters();
    const auto reference = optimizer.make(whole, std::nullopt);
    const auto sharded = optimizer.make(shared, ShardedOptimizerOptions{});
    train(*reference, whole, 0, 2);
    train(*sharded, shared, 0, 2);
    const std::string expected = text_of(optimizer_state_dict(*reference));
    const auto& state = dynamic_cast<const ShardedState&>(*sharded);
    for (const int target : {0, world_size_ - 1}) {
      const c10::IValue dict = state.consolidated_state_dict(target);
      EXPECT_EQ(dict.isNone(), rank_ != target);
      EXPECT_EQ(text_of(dict), rank_ == target ? expected : text_of(c10::IValue()));
    }
    EXPECT_EQ(text_of(state.consolidated_state_dict(std::nullopt)), expected);
  }
}

TEST_F(Sharded, GoesOnFromAFullStateOnAnotherNumberOfRanks) {
  std::vector<int> half;
  for (int rank = 0; rank < (world_size_ + 1) / 2; ++rank) half.push_back(rank);
  const ProcessGroup fewer = group_.new_group(half);
  for (const NamedOptimizer& optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer.name);
    const Tensors parameters = make_parameters();
    const auto first = optimizer.make(parameters, ShardedOptimizerOptions{});
    train(*first, parameters, 0, 2);
    const c10::IValue dict =
        dynamic_cast<const ShardedState&>(*first).consolidated_state_dict(std::nullopt);
    Tensors others;
    for (const at::Tensor& parameter : parameters) {
      others.push_back(parameter.detach().clone().requires_grad_(parameter.requires_grad()));
    }
    train(*first, parameters, 2, 4);

    if (!fewer) continue;
    const auto second = optimizer.make(others, ShardedOptimizerOptions{.process_group = fewer});
    load_optimizer_state_dict(*second, dict);
    for (const auto& [key, state] : second->state()) {
      const auto kept = std::find_if(others.begin(), others.end(), [&, key = key](const auto& one) {
        return one.unsafeGetTensorImpl() == key;
      });
      EXPECT_TRUE(dynamic_cast<const ShardedState&>(*second).keeps_state_of(*kept));
    }
    train(*second, others, 2, 4);
    EXPECT_TRUE(same(others, parameters));
  }
}

TEST_F(Sharded, TrainsWithDistributedDataParallelAndIsStoredInSnapshotsWhole) {
  const FolderOfRanks shared(group_, "sharded-");

  // Twice: a parameter may move when the sharded optimizer is made.
  for (const ShardedOptimizerOptions& options : kinds()) {
    const std::string folder =
        shared.path() + (options.parameters_as_bucket_view ? "/views" : "/apart");
    at::manual_seed(3);
    SmallNet reference_net;
    SmallNet net;
    load_state_dict(*net, state_dict(*reference_net));
    DistributedDataParallel reference_model(reference_net);
    DistributedDataParallel model(net);
    torch::optim::AdamW reference(reference_net->parameters(), 0.01);
    ShardedOptimizer<torch::optim::AdamW> sharded(net->parameters(), 0.01, options);
    const auto run = [&](auto& any_model, torch::optim::Optimizer& optimizer, int first, int last) {
      for (int step = first; step < last; ++step) {
        at::manual_seed(100 * step + rank_);
        const at::Tensor input = at::randn({6, 4});
        optimizer.zero_grad();
        (any_model(input) - input.sum(1, true)).square().mean().backward();
        optimizer.step();
      }
    };
    run(reference_model, reference, 0, 3);
    run(model, sharded, 0, 3);
    EXPECT_TRUE(same_weights(net, reference_net));

    SnapshotDirectory(folder).save(*net, sharded, {.step = 3});
    group_.barrier();
    SmallNet resumed_net;
    torch::optim::AdamW resumed(resumed_net->parameters(), 0.5);
    ASSERT_TRUE(SnapshotDirectory(folder).load_latest(*resumed_net, resumed));
    SmallNet sharded_net;
    ShardedOptimizer<torch::optim::AdamW> resumed_sharded(sharded_net->parameters(), 0.5, options);
    ASSERT_TRUE(SnapshotDirectory(folder).load_latest(*sharded_net, resumed_sharded));
    EXPECT_EQ(text_of(optimizer_state_dict(resumed)), text_of(optimizer_state_dict(reference)));

    DistributedDataParallel resumed_model(resumed_net);
    DistributedDataParallel sharded_model(sharded_net);
    run(reference_model, reference, 3, 5);
    run(resumed_model, resumed, 3, 5);
    run(sharded_model, resumed_sharded, 3, 5);
    EXPECT_TRUE(same_weights(resumed_net, reference_net));
    EXPECT_TRUE(same_weights(sharded_net, reference_net));
  }
  group_.barrier();  // nobody removes the directory while others use it
}

TEST_F(Sharded, RefusesToSaveAShareAsIfItWasAll) {
  const Tensors parameters = make_parameters();
  const ShardedOptimizer<torch::optim::SGD> optimizer(parameters, 0.1);
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer_state_dict(optimizer); }),
              "consolidated_state_dict()");
  torch::serialize::OutputArchive archive;
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.save(archive); }), "shard only");
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.consolidated_state_dict(world_size_); }),
              "is no rank of a group of");
}

TEST_F(Sharded, RefusesParametersThatDifferBetweenRanks) {
  NEEDS_RANKS(2);
  const int odd_one = world_size_ - 1;
  const Tensors parameters{at::ones({rank_ == odd_one ? 3 : 2}).requires_grad_()};
  expect_failure_of<Error>(odd_one, "it has parameter 0 of group 0 float [3]", [&] {
    const ShardedOptimizer<torch::optim::SGD> optimizer(parameters, 0.1);
  });
}

TEST_F(Sharded, RefusesParametersThatHaveMemoryInCommon) {
  NEEDS_RANKS(2);
  const at::Tensor memory = at::ones({6, 4});
  const auto make = [](const Tensors& views) {
    Tensors parameters;
    for (const at::Tensor& view : views) parameters.push_back(view.detach().requires_grad_());
    return parameters;
  };
  const Tensors overlapping[] = {{memory.narrow(0, 0, 3), memory.narrow(0, 2, 2)},
                                 {memory.t(), memory},
                                 {memory.select(1, 1), at::ones({2}), memory.select(0, 5)}};
  for (const Tensors& views : overlapping) {
    const std::string message = message_of<UsageError>(
        [&] { const ShardedOptimizer<torch::optim::SGD> optimizer(make(views), 0.1); });
    EXPECT_SAYS(message, concat("parameter ", views.size() - 1,
                                " of group 0 has memory in common with parameter 0 of group 0"));
  }
  ShardedOptimizer<torch::optim::SGD> optimizer(make({memory}), 0.1);
  const std::string message =
      message_of<UsageError>([&] { optimizer.add_param_group({make({memory.select(0, 1)})}); });
  EXPECT_SAYS(message, "parameter 0 of group 1 has memory in common with parameter 0 of group 0");
}

// Views that lie between each other do not.
TEST_F(Sharded, TakesViewsOfOneTensorThatHaveNoElementInCommon) {
  const at::Tensor whole_memory = at::ones({6, 4});
  const at::Tensor shared_memory = at::ones({6, 4});
  const auto make = [](const at::Tensor& memory) {
    Tensors parameters;
    for (int column = 0; column < 4; ++column) {
      parameters.push_back(memory.select(1, column).detach().requires_grad_());
    }
    return parameters;
  };
  const Tensors whole = make(whole_memory);
  const Tensors shared = make(shared_memory);
  torch::optim::Adam reference(whole, 0.01);
  ShardedOptimizer<torch::optim::Adam> sharded(shared, 0.01);
  train(reference, whole, 0, 3);
  train(sharded, shared, 0, 3);
  EXPECT_TRUE(same(shared, whole));
  EXPECT_TRUE(at::equal(shared_memory, whole_memory));
}

TEST_F(Sharded, RefusesParametersThatHaveLeftTheBucket) {
  NEEDS_RANKS(2);
  const Tensors parameters = make_parameters();
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, 0.1,
                                                {.parameters_as_bucket_view = true});
  parameters[1].set_data(parameters[1].detach().clone());
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "of shape [31, 17] has left");
}

TEST_F(Sharded, RefusesAGroupWhoseParametersWereExchanged) {
  Tensors parameters = make_parameters();
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, 0.1);
  optimizer.param_groups()[0].params().pop_back();
  EXPECT_SAYS(message_of<UsageError>([&] { optimizer.step(); }), "add_param_group");
}

}  // namespace
}  // namespace lockstep::testing
