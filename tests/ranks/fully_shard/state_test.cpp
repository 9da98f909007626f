// What Strategy::kFullyShard keeps beside parameters: buffers, the state of shared and of added
// parameters, and which optimizers it refuses.
#include <functional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include "lockstep/optim/optimizers.h"
#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

class FullyShardState : public AcceleratorTest {
 protected:
  AcceleratorOptions options_of(bool is_sharded) const {
    return {.strategy = is_sharded ? Strategy::kFullyShard : Strategy::kDdp,
            .fully_shard = {.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()}};
  }

  at::Tensor rows(std::int64_t step) const {
    return (at::arange(24, at::kFloat) + static_cast<double>(7 * step + 3 * rank_))
        .sin()
        .view({6, 4});
  }

  static void fill(torch::nn::Module& net) {
    const at::NoGradGuard no_grad;
    double at = 0;
    for (at::Tensor& parameter : net.parameters()) {
      parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.3);
    }
  }

  template <class Model, class Optimizer>
  void train(Accelerator& accelerator, Model& model, Optimizer& optimizer, std::int64_t first,
             std::int64_t last) const {
    for (std::int64_t step = first; step < last; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(rows(step)).square().mean());
      optimizer.step();
    }
  }

  bool sums_in_one_order() const { return group_.shares_memory() || world_size_ <= 2; }
  void expect_equal(const at::Tensor& actual, const at::Tensor& expected) const {
    EXPECT_TRUE(sums_in_one_order() ? at::equal(actual, expected)
                                    : at::allclose(actual, expected, 1e-3, 1e-5));
  }
};

TEST_F(FullyShardState, BuffersAreThoseOfRank0) {
  Tensors buffers[2];
  at::Tensor outputs[2];
  for (const bool is_sharded : {false, true}) {
    Accelerator accelerator(options_of(is_sharded));
    // A bias before the norm would have gradients of rounding errors, from which AdamW makes steps.
    torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)),
                              torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 1));
    fill(*net);
    AdamW adam(net->parameters(), {.lr = 0.02});
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(adam);
    train(accelerator, model, optimizer, 0, 4);
    model->eval();
    const at::NoGradGuard no_grad;
    outputs[is_sharded ? 1 : 0] = model(at::ones({3, 4}));
    for (const at::Tensor& buffer : net->buffers()) {
      buffers[is_sharded ? 1 : 0].push_back(buffer.clone());
    }
  }
  expect_equal(outputs[1], outputs[0]);
  ASSERT_EQ(buffers[1].size(), buffers[0].size());
  for (std::size_t i = 0; i < buffers[0].size(); ++i) expect_equal(buffers[1][i], buffers[0][i]);
}

// LibTorch's parameters() has a parameter that two modules share twice, and so has the optimizer.
TEST_F(FullyShardState, SharedParametersAreSavedAndLoaded) {
  const auto make = [] {
    torch::nn::Linear shared(4, 4);
    torch::nn::Sequential net(shared, torch::nn::Tanh(), shared);
    fill(*net);
    return net;
  };
  Accelerator other(options_of(false));
  torch::nn::Sequential expected = make();
  SGD plain(expected->parameters(), {.lr = 0.1, .momentum = 0.9});
  auto replicas = other.prepare(expected);
  auto plain_optimizer = other.prepare(plain);
  train(other, replicas, plain_optimizer, 0, 6);

  for (const auto& [sharded_saves, asynchronous] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    const FolderOfRanks folder(group_, "fully-shard-state-");
    AcceleratorOptions options = options_of(true);
    options.directory = folder.path() + "/snapshots";
    options.sharded_saves = sharded_saves;
    options.asynchronous_saves = asynchronous;
    for (const bool resumes : {false, true}) {
      Accelerator accelerator(options);
      torch::nn::Sequential net = make();
      SGD sgd(net->parameters(), {.lr = 0.1, .momentum = 0.9});
      auto model = accelerator.prepare(net);
      auto optimizer = accelerator.prepare(sgd);
      if (!resumes) {
        train(accelerator, model, optimizer, 0, 3);
        accelerator.save_state();
        accelerator.wait_for_saves();
        accelerator.wait_for_everyone();
        continue;
      }
      ASSERT_TRUE(accelerator.load_state());
      train(accelerator, model, optimizer, 3, 6);
      const TensorDict weights = accelerator.get_state_dict(*net);
      if (rank_ == 0) expect_equal(weights.front().second, expected->parameters().front());
    }
  }
}

TEST_F(FullyShardState, ParametersThatAreAddedToAnOptimizerAreTrained) {
  Tensors weights[2];
  for (const bool is_sharded : {false, true}) {
    Accelerator accelerator(options_of(is_sharded));
    torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
    fill(*net);
    SGD sgd(net[0]->parameters(), {.lr = 0.1});
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(sgd);
    train(accelerator, model, optimizer, 0, 2);
    sgd.add_param_group(torch::optim::OptimizerParamGroup(net[2]->parameters()));
    train(accelerator, model, optimizer, 2, 4);
    for (const auto& [name, tensor] : accelerator.get_state_dict(*net)) {
      weights[is_sharded ? 1 : 0].push_back(tensor.clone());
    }
  }
  if (rank_ != 0) return;
  ASSERT_EQ(weights[1].size(), weights[0].size());
  for (std::size_t i = 0; i < weights[0].size(); ++i) expect_equal(weights[1][i], weights[0][i]);
}

TEST_F(FullyShardState, RefusesOptimizersThatNeedWholeParameters) {
  const auto refusal = [&](const auto& make) {
    return message_of<UsageError>([&] {
      Accelerator accelerator(options_of(true));
      torch::nn::Sequential net(torch::nn::Linear(4, 5));
      auto optimizer = make(net->parameters());
      accelerator.prepare(optimizer);
      accelerator.prepare(net);
    });
  };
  EXPECT_SAYS(refusal([](const Tensors& all) { return LAMB(all); }), "LAMB needs norms");
  EXPECT_SAYS(refusal([](const Tensors& all) { return torch::optim::LBFGS(all); }), "LBFGS");
  EXPECT_SAYS(refusal([](const Tensors& all) { return torch::optim::Adagrad(all); }),
              "use lockstep::Adagrad");
}

}  // namespace
}  // namespace lockstep::testing
