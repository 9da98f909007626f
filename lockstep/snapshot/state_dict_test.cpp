#include "lockstep/snapshot/state_dict.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/small_net.h"
#include "lockstep/snapshot/snapshot_testing.h"

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
  EXPECT_NE(message.find("load old.pt: it does not fit the model in 9 places: 'first.weight' is "
                         "float[5, 4], the model's is float[8, 4]"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("and 6 more"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(same_weights(net, before));
}

TEST(StateDict, MissingAndForeignNamesAreSaid) {
  SmallNet net;
  TensorDict values = state_dict(*net);
  values[0].first = "module.first.weight";
  const std::string message = message_of<UsageError>([&] { check_state_dict(*net, values); });
  EXPECT_NE(message.find("'first.weight' is missing; 'module.first.weight' is not in the model"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace lockstep::testing
