#include "lockstep/snapshot/internal/optimizer_state.h"

#include <cstring>
#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/internal/random_state.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(SmallNet&, double)>;

template <class Optimizer, class Options>
MakeOptimizer maker(Options options) {
  return [options](SmallNet& net, double lr) {
    Options with_lr = options;
    return std::make_unique<Optimizer>(net->parameters(), with_lr.lr(lr));
  };
}

struct NamedMaker {
  const char* name;
  MakeOptimizer make;
};

const NamedMaker kMakers[] = {
    {"Sgd", maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1))},
    {"SgdMomentum",
     maker<torch::optim::SGD>(
         torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-3))},
    {"Adam", maker<torch::optim::Adam>(torch::optim::AdamOptions().betas({0.8, 0.99}))},
    {"AdamAmsgrad", maker<torch::optim::Adam>(torch::optim::AdamOptions().amsgrad(true))},
    {"AdamW", maker<torch::optim::AdamW>(torch::optim::AdamWOptions())},
    {"Rmsprop",
     maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions().momentum(0.9).centered(true))},
    {"Adagrad", maker<torch::optim::Adagrad>(torch::optim::AdagradOptions().lr_decay(1e-3))},
};

class OptimizerState : public ::testing::TestWithParam<NamedMaker> {};

/// The optimizer that takes over has other hyperparameters, so those must be taken over too.
TEST_P(OptimizerState, TakenOverGoesOnBitForBit) {
  SmallNet net;
  const auto optimizer = GetParam().make(net, 0.01);
  train(net, *optimizer, 5);

  SmallNet other;
  const auto other_optimizer = GetParam().make(other, 0.5);
  train(other, *other_optimizer, 1);
  load_state_dict(*other, state_dict(*net));
  load_optimizer_state_dict(*other_optimizer, optimizer_state_dict(*optimizer));

  const at::Tensor random = random_state(at::kCPU);
  train(net, *optimizer, 5);
  set_random_state(at::kCPU, random);
  train(other, *other_optimizer, 5);
  EXPECT_TRUE(same_weights(net, other));
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerState, ::testing::ValuesIn(kMakers),
                         [](const auto& parameter) { return parameter.param.name; });

c10::IValue entry_of(const c10::IValue& dict, const std::string& key) {
  return entry(dict, key, "test");
}

TEST(OptimizerStateDict, CountsParametersOverAllGroups) {
  SmallNet net;
  torch::optim::SGD optimizer(net->first->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      net->second->parameters(), std::make_unique<torch::optim::SGDOptions>(0.2)));
  train(net, optimizer, 1);
  const c10::IValue dict = optimizer_state_dict(optimizer);
  const c10::IValue second = entry_of(dict, "param_groups").toListRef()[1];
  EXPECT_EQ(entry_of(second, "lr").toDouble(), 0.2);
  EXPECT_EQ(entry_of(second, "params").toListRef()[1].toInt(), 3);
  EXPECT_TRUE(entry_of(dict, "state").toGenericDict().contains(std::int64_t{1}));
}

TEST(OptimizerStateDict, CountsOfStepsStayExact) {
  SmallNet net;
  torch::optim::Adam optimizer(net->parameters());
  train(net, optimizer, 1);
  const std::int64_t steps = (std::int64_t{1} << 24) + 1;
  void* key = net->first->weight.unsafeGetTensorImpl();
  static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(key)).step(steps);
  load_optimizer_state_dict(optimizer, optimizer_state_dict(optimizer));
  EXPECT_EQ(static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(key)).step(), steps);
}

// Of tensors that another optimizer has it takes copies; of a file's it takes these themselves.
TEST(OptimizerStateDict, IsAdoptedWhereNobodyElseHoldsIt) {
  SmallNet net;
  torch::optim::Adam optimizer(net->parameters());
  train(net, optimizer, 1);
  const at::Tensor& weight = net->first->weight;
  const auto average_of = [&](const torch::optim::Adam& adam) {
    const auto& state = *adam.state().at(weight.unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdamParamState&>(state).exp_avg();
  };
  const c10::IValue held = optimizer_state_dict(optimizer);
  torch::optim::Adam second(net->parameters());
  adopt_optimizer_state_dict(second, held);
  EXPECT_NE(average_of(second).const_data_ptr(), average_of(optimizer).const_data_ptr());

  const Pickled pickled = pickle(held);
  std::size_t next = 0;
  const auto copy_of_storage = [&](std::uint64_t bytes) {
    const void* const data = pickled.storages[next++].storage().data();
    at::Tensor storage = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    std::memcpy(storage.mutable_data_ptr(), data, bytes);
    return storage;
  };
  const c10::IValue read = unpickle_in_order(pickled.pickle, copy_of_storage, "test");
  const c10::IValue first = entry_of(read, "state").toGenericDict().at(std::int64_t{0});
  const void* const data = entry_of(first, "exp_avg").toTensor().const_data_ptr();
  adopt_optimizer_state_dict(second, read);
  EXPECT_EQ(average_of(second).const_data_ptr(), data);
  EXPECT_TRUE(average_of(second).equal(average_of(optimizer)));
}

class WrongOptimizer : public ::testing::Test {
 protected:
  WrongOptimizer() : optimizer_(net_->parameters()) { train(net_, optimizer_, 1); }

  template <class Optimizer>
  std::string refusal(Optimizer&& other) {
    const c10::IValue dict = optimizer_state_dict(optimizer_);
    return message_of<UsageError>([&] { load_optimizer_state_dict(other, dict, "old.pt"); });
  }

  SmallNet net_;
  torch::optim::Adam optimizer_;
};

TEST_F(WrongOptimizer, OfAnotherKindIsRefused) {
  EXPECT_NE(refusal(torch::optim::SGD(net_->parameters(), 0.1)).find("'momentum'"),
            std::string::npos);
  EXPECT_NE(refusal(torch::optim::AdamW(net_->parameters())).find("'decoupled_weight_decay'"),
            std::string::npos);
  EXPECT_NE(refusal(torch::optim::LBFGS(net_->parameters())).find("snapshots know"),
            std::string::npos);
}

TEST_F(WrongOptimizer, OfAnotherModelIsRefused) {
  EXPECT_NE(refusal(torch::optim::Adam(net_->first->parameters())).find("group 0 has 6 parameters"),
            std::string::npos);
  SmallNet wider(9);
  const std::string message = refusal(torch::optim::Adam(wider->parameters()));
  EXPECT_NE(message.find("load old.pt, as Adam: 'exp_avg' of parameter 0 is float[8, 4], the "
                         "parameter is float[9, 4]"),
            std::string::npos)
      << message;
}

TEST_F(WrongOptimizer, LeavesTheOptimizerAlone) {
  SmallNet wider(9);
  torch::optim::Adam other(wider->parameters());
  train(wider, other, 2);
  refusal(other);
  void* key = wider->first->weight.unsafeGetTensorImpl();
  EXPECT_EQ(static_cast<torch::optim::AdamParamState&>(*other.state().at(key)).step(), 2);
}

TEST_F(WrongOptimizer, WithAnOptionThatLibTorchLacksIsRefused) {
  const c10::IValue dict = optimizer_state_dict(optimizer_);
  entry_of(dict, "param_groups").toListRef()[0].toGenericDict().insert_or_assign("maximize", true);
  const std::string message =
      message_of<UsageError>([&] { check_optimizer_state_dict(optimizer_, dict); });
  EXPECT_NE(message.find("'maximize' is True"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing
