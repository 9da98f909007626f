// What programs do with a module that has one copy per machine, beside training it.
#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/optimizers.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

/// A layer with one copy, and its replica.
class OneCopyPrograms : public OneCopy {
 protected:
  using Linear = DistributedDataParallel<torch::nn::LinearImpl>;

  struct Pair {
    Linear model = make(true);
    Linear replica = make(false);
    AdamW optimizer = AdamW(model->parameters(), {.lr = 0.1});
    AdamW other = AdamW(replica->parameters(), {.lr = 0.1});
  };

  static Linear make(bool one_copy) {
    torch::nn::Linear module(97, 31);
    const at::NoGradGuard no_grad;
    module->weight.copy_(at::arange(97 * 31).sin().view({31, 97}));
    module->bias.fill_(0.5);
    return Linear(module.ptr(), {.one_copy_per_machine = one_copy});
  }
  at::Tensor inputs(int step) const {
    return at::arange(2 * 97).view({2, 97}).mul(rank_ + 1).add(step).cos();
  }
  void train(Pair& pair, int step) const {
    for (const auto& [one, by] :
         {std::pair{&pair.model, &pair.optimizer}, {&pair.replica, &pair.other}}) {
      by->zero_grad();
      one->forward(inputs(step)).pow(2).sum().backward();
      by->step();
    }
    expect_same_bits(pair.model->parameters(), pair.replica->parameters());
  }
};

TEST_F(OneCopyPrograms, FrozenOrConvertedParametersAreRefused) {
  NEEDS_COPIES();
  Pair pair;
  train(pair, 0);
  const auto refused = [&] {
    return message_of<UsageError>([&] { pair.model.forward(inputs(1)); });
  };
  pair.model->bias.requires_grad_(false);
  EXPECT_SAYS(refused(), "parameter 'bias' was frozen or changed in dtype or device");
  pair.model->bias.requires_grad_(true);
  train(pair, 1);
  pair.model->to(at::kDouble);
  EXPECT_SAYS(refused(), "parameter 'weight' was frozen or changed in dtype or device");
}

TEST_F(OneCopyPrograms, HooksChangeGradients) {
  NEEDS_COPIES();
  Pair pair;
  for (Linear* const one : {&pair.model, &pair.replica}) {
    one->module()->weight.register_hook([](const at::Tensor& gradient) { return gradient / 3; });
  }
  for (int step = 0; step < 3; ++step) train(pair, step);
}

TEST_F(OneCopyPrograms, AClonedModuleIsAnother) {
  NEEDS_COPIES();
  Pair pair;
  train(pair, 0);
  const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(pair.model->clone());
  expect_same_bits(clone->parameters(), pair.model->parameters());
  const at::Tensor before = clone->weight.detach().clone();
  train(pair, 1);
  EXPECT_TRUE(same_bits(clone->weight, before));
  {
    const at::NoGradGuard no_grad;
    clone->weight.fill_(rank_);
  }
  train(pair, 2);
}

TEST_F(OneCopyPrograms, DataParallelEvaluatesIt) {
  NEEDS_COPIES();
  Pair pair;
  train(pair, 0);
  const at::NoGradGuard no_grad;
  const std::vector<at::Device> devices(2, at::kCPU);
  DataParallel evaluated(pair.model.module(), {.device_ids = devices});
  DataParallel expected(pair.replica.module(), {.device_ids = devices});
  EXPECT_TRUE(same_bits(evaluated(inputs(1)), expected(inputs(1))));
}

}  // namespace
}  // namespace lockstep::testing
