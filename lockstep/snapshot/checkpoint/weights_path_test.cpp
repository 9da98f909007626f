#include "lockstep/snapshot/checkpoint/weights_path.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

/// Names that the weights have, of tensors at these paths.
std::vector<std::string> names_of(const std::vector<KeyPath>& paths) {
  const KeyPath dict = weights_path(paths);
  std::vector<std::string> names;
  for (const KeyPath& path : paths) {
    if (is_below(path, dict)) names.push_back(name_below(path, dict));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(WeightsPath, LeadsToTheDictOfTheWeights) {
  EXPECT_EQ(names_of({{"0.w"}, {"0.b"}}), (Names{"0.w", "0.b"}));
  EXPECT_EQ(names_of({{"model", "0.w"}, {"optim", "state", "0.w"}, {"step"}}), Names{"0.w"});
  EXPECT_EQ(names_of({{"state_dict", "layer", "w"}, {"opt", "m"}}), Names{"layer.w"});
  EXPECT_EQ(names_of({{"model", "state_dict", "w"}, {"model", "ema", "w"}}), Names{"w"});
  EXPECT_EQ(names_of({{"app", "model", "w"}, {"app", "optim", "state", "w"}}), Names{"w"});
  EXPECT_EQ(names_of({{"app", "model", "state_dict", "a", "w"}}), Names{"a.w"});
  EXPECT_EQ(
      names_of({{"state", "model", "w"}, {"state", "optimizers", "m"}, {"rng", "0"}, {"step"}}),
      Names{"w"});
}

TEST(WeightsPath, KeepsWeightsOfAnyDepth) {
  EXPECT_EQ(names_of({{"model", "head"}, {"model", "encoder", "w"}, {"model", "a", "b", "c"}}),
            (Names{"head", "encoder.w", "a.b.c"}));
  EXPECT_EQ(names_of({{"model", "model", "w"}, {"model", "b"}}), (Names{"model.w", "b"}));
}

TEST(WeightsPath, TakesNoOtherDictForTheWeights) {
  EXPECT_EQ(names_of({{"model", "w"}, {"optimizer", "state_dict", "momentum"}}), Names{"w"});
  EXPECT_EQ(names_of({{"model", "w"}, {"ema", "model", "w"}}), Names{"w"});
  // Two dicts at the top, neither of which is the model's.
  EXPECT_EQ(names_of({{"net", "w"}, {"ema", "model", "w"}}), (Names{"net.w", "ema.model.w"}));
  EXPECT_EQ(names_of({{"a", "model", "w"}, {"b", "model", "w"}}),
            (Names{"a.model.w", "b.model.w"}));
  EXPECT_EQ(names_of({{"w"}, {"ema", "model", "w"}}), (Names{"w", "ema.model.w"}));
  EXPECT_EQ(
      names_of(
          {{"a", "model", "w"}, {"a", "optim", "m"}, {"b", "model", "w"}, {"b", "optim", "m"}}),
      (Names{"a.model.w", "a.optim.m", "b.model.w", "b.optim.m"}));
}

TEST(WeightsPath, ATensorOfTheNameIsNoDict) {
  EXPECT_EQ(names_of({{"model"}, {"w"}}), (Names{"model", "w"}));
  EXPECT_EQ(names_of({{"model.w"}, {"model.b"}}), (Names{"model.w", "model.b"}));
  EXPECT_EQ(names_of({{"app", "model"}, {"app", "w"}}), (Names{"app.model", "app.w"}));
}

TEST(WeightsPath, AnyPathIsAllowed) {
  EXPECT_EQ(names_of({}), Names{});
  EXPECT_EQ(names_of({{}, {"model", ""}}), Names{""});
  EXPECT_EQ(names_of({{}, {"w"}}), Names{"w"});
}

using Items = std::vector<std::pair<std::string, c10::IValue>>;

c10::IValue dict(const Items& items) {
  c10::impl::GenericDict dict = make_dict();
  for (const auto& [key, value] : items) dict.insert(key, value);
  return dict;
}

/// Names of the tensors in the weights of a tree.
Names names_in(const c10::IValue& tree) {
  Names names;
  visit_tensors(weights_value(tree),
                [&](const std::string& name, const at::Tensor&) { names.push_back(name); });
  return names;
}

TEST(WeightsValue, IsFoundByThePathsOfTheTensors) {
  const c10::IValue tensor = at::ones({1});
  const c10::IValue weights = dict({{"w", tensor}});
  const c10::IValue none = dict({});
  EXPECT_EQ(names_in(tensor), Names{""});
  EXPECT_EQ(names_in(weights), Names{"w"});
  EXPECT_EQ(names_in(dict({{"model", weights}, {"optim", weights}})), Names{"w"});
  EXPECT_EQ(names_in(dict({{"app", dict({{"model", weights}, {"optim", weights}})}})), Names{"w"});
  // Options of a model, also with an empty dict of the weights' name.
  const c10::IValue options = dict({{"model", none}, {"name", std::string("net")}});
  EXPECT_EQ(names_in(dict({{"model", options}, {"state_dict", weights}})), Names{"w"});
  EXPECT_EQ(names_in(dict({{"w", tensor}, {"model", dict({{"x", options}})}})), Names{"w"});
  EXPECT_EQ(names_in(dict({{"app", dict({{"model", weights}})}, {"x", dict({{"y", options}})}})),
            Names{"w"});
  EXPECT_EQ(names_in(dict({{"net", weights}, {"x", options}})), Names{"net.w"});
  // A list is no dict of weights.
  EXPECT_EQ(names_in(dict({{"model", c10::List<at::Tensor>({at::ones({1})})}, {"w", tensor}})),
            (Names{"model.0", "w"}));
}

TEST(WeightsValue, OfAModelWithoutTensorsIsEmpty) {
  const c10::IValue none = dict({});
  const c10::IValue state = dict({{"m", at::ones({1})}});
  for (const c10::IValue& tree :
       {dict({{"model", none}, {"optim", state}}),
        dict({{"app", dict({{"model", none}, {"optim", state}})}, {"step", at::ones({1})}}),
        dict({{"app", dict({{"state_dict", none}})}})}) {
    EXPECT_TRUE(weights_value(tree).toGenericDict().empty());
  }
}

}  // namespace
}  // namespace lockstep
