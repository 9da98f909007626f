#include "lockstep/snapshot/checkpoint/weights_path.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
