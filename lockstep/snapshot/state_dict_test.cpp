#include "lockstep/snapshot/state_dict.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

TEST(StateDict, HasPythonsNamesInPythonsOrder) {
  std::string names;
  for (const auto& [name, tensor] : state_dict(*SmallNet())) names += name + " ";
  EXPECT_EQ(names,
            "first.weight first.bias norm.weight norm.bias norm.running_mean norm.running_var "
            "norm.num_batches_tracked second.weight second.bias ");
}

TEST(StateDict, WorksOnAModuleThatNoPointerOwns) {
  const SmallNetImpl net;
  EXPECT_EQ(state_dict(net).size(), 9u);
}

TEST(StateDict, IsCopiedIntoTheModuleWithoutReplacingItsTensors) {
  SmallNet source;
  SmallNet target;
  const at::Tensor weight = target->first->weight;
  load_state_dict(*target, state_dict(*source));
  EXPECT_TRUE(same_weights(source, target));
  EXPECT_TRUE(weight.is_same(target->first->weight));
  EXPECT_TRUE(weight.requires_grad());
}

TEST(StateDict, OfAnotherModelIsRefusedWithTheDifferencesAndChangesNothing) {
  SmallNet net;
  SmallNet before;
  load_state_dict(*before, state_dict(*net));
  TensorDict values = state_dict(*SmallNet(5));
  values[8].second = values[8].second.to(at::kDouble);
  values.emplace_back("third.weight", at::ones({2}));
  const std::string message =
      message_of<UsageError>([&] { load_state_dict(*net, values, "old.pt"); });
  EXPECT_NE(message.find("load old.pt: it does not fit the model in 9 places: 'first.weight' was "
                         "saved as float[5, 4], and is float[8, 4] here"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("and 6 more"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(same_weights(net, before));
}

TEST(StateDict, ATiedTensorNeedsAValueForOneOfItsNames) {
  const auto tied_net = [] {
    torch::nn::Embedding words(4, 3);
    const auto head = std::make_shared<torch::nn::Module>();
    head->register_parameter("weight", words->weight);
    const auto net = std::make_shared<torch::nn::Module>();
    net->register_module("words", words);
    net->register_module("head", head);
    return net;
  };
  const TensorDict values = state_dict(*tied_net());
  ASSERT_EQ(values.size(), 2u);
  for (const std::size_t given : {0u, 1u}) {
    const auto net = tied_net();
    load_state_dict(*net, TensorDict{values[given]});
    EXPECT_TRUE(same_bits(state_dict(*net)[1 - given].second, values[given].second));
  }
  SmallNet apart;
  TensorDict others = state_dict(*apart);
  others.pop_back();
  EXPECT_NE(message_of<UsageError>([&] {
              load_state_dict(*apart, others);
            }).find("'second.bias' was not saved"),
            std::string::npos);
}

TEST(StateDict, MissingAndForeignNamesAreSaid) {
  SmallNet net;
  TensorDict values = state_dict(*net);
  values[0].first = "module.first.weight";
  const std::string message = message_of<UsageError>([&] { check_state_dict(*net, values); });
  EXPECT_NE(message.find(
                "'first.weight' was not saved; 'module.first.weight' was saved, and is not here"),
            std::string::npos)
      << message;
}

TensorDict with_prefix(TensorDict values) {
  for (auto& [name, tensor] : values) name.insert(0, "module.");
  return values;
}

TEST(StateDict, OfAWrappedModelIsTakenWithoutThePrefix) {
  SmallNet source;
  SmallNet target;
  const TensorDict wrapped = with_prefix(state_dict(*source));
  check_state_dict(*target, wrapped);
  load_state_dict(*target, wrapped);
  EXPECT_TRUE(same_weights(source, target));
  EXPECT_EQ(without_prefix(wrapped)[0].first, "first.weight");
}

TEST(StateDict, APrefixThatIsTheModulesOwnStays) {
  struct Wrapper : torch::nn::Module {
    SmallNet net{register_module("module", SmallNet())};
  };
  Wrapper source;
  Wrapper target;
  load_state_dict(target, state_dict(source));
  EXPECT_TRUE(same_weights(source.net, target.net));
}

TEST(StateDict, PartialLoadingCopiesWhatFitsAndTellsTheRest) {
  SmallNet source;
  SmallNet target;
  SmallNet before;
  load_state_dict(*before, state_dict(*target));
  TensorDict values = state_dict(*source);
  values[0].second = at::ones({8, 5});                  // first.weight
  values[8].second = values[8].second.to(at::kDouble);  // second.bias
  values.erase(values.begin() + 1);                     // first.bias
  values.emplace_back("third.weight", at::ones({2}));
  const IncompatibleKeys keys =
      load_state_dict(*target, with_prefix(values), {.strict = false, .source = "old.pt"});
  EXPECT_EQ(keys.missing, std::vector<std::string>{"first.bias"});
  EXPECT_EQ(keys.unexpected, std::vector<std::string>{"third.weight"});
  EXPECT_EQ(keys.mismatched, (std::vector<std::string>{"first.weight", "second.bias"}));
  EXPECT_TRUE(same_bits(target->first->weight, before->first->weight));
  EXPECT_TRUE(same_bits(target->second->bias, before->second->bias));
  EXPECT_TRUE(same_bits(target->second->weight, source->second->weight));
  EXPECT_TRUE(load_state_dict(*target, state_dict(*source), {.strict = false}).empty());
  EXPECT_TRUE(same_weights(source, target));
  EXPECT_THROW(load_state_dict(*target, values, LoadStateDictOptions{}), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
