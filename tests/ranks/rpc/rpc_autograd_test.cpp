#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/rpc/autograd_context.h"
#include "lockstep/rpc/distributed_optimizer.h"
#include "lockstep/rpc/rpc.h"
#include "tests/ranks/fixture.h"

namespace lockstep {
namespace {

using lockstep::testing::message_of;

constexpr int kLayers = 4;
constexpr double kRate = 0.1;

// The same layer, whichever process makes it: one at a time, as all threads share one generator.
torch::nn::Linear make_layer(int index) {
  torch::manual_seed(100 + index);
  return torch::nn::Linear(torch::nn::LinearOptions(5, 5));
}

at::Tensor layer_output(torch::nn::Linear& layer, const at::Tensor& inputs) {
  return torch::tanh(layer(inputs));
}

at::Tensor batch(int step) {
  torch::manual_seed(step);
  return torch::randn({7, 5});
}

std::vector<at::Tensor> train_alone(int steps) {
  std::vector<torch::nn::Linear> layers;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(make_layer(i));
    for (const auto& parameter : layers.back()->parameters()) parameters.push_back(parameter);
  }
  torch::optim::SGD optimizer(parameters, kRate);
  for (int step = 0; step < steps; ++step) {
    at::Tensor values = batch(step);
    for (auto& layer : layers) values = layer_output(layer, values);
    optimizer.zero_grad();
    values.square().mean().backward();
    optimizer.step();
  }
  return parameters;
}

class RpcAutograd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rpc::register_function(
        "layer", [](int index) { return std::make_shared<torch::nn::Linear>(make_layer(index)); });
    rpc::register_function("layer.forward",
                           [](const std::shared_ptr<torch::nn::Linear>& layer,
                              const at::Tensor& inputs) { return layer_output(*layer, inputs); });
    rpc::register_function("layer.parameter",
                           [](const std::shared_ptr<torch::nn::Linear>& layer, int index) {
                             return (*layer)->parameters()[static_cast<std::size_t>(index)];
                           });
    rpc::register_function("sum", [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
    // One layer after the other, each worker calling the next.
    rpc::register_function("chain", [](std::vector<rpc::RRef> layers, const at::Tensor& inputs) {
      return forward_chain(std::move(layers), inputs);
    });
    rpc::register_optimizer("sgd", [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), kRate);
    });
  }

  static at::Tensor forward_chain(std::vector<rpc::RRef> layers, const at::Tensor& inputs) {
    const rpc::RRef first = layers.front();
    layers.erase(layers.begin());
    const auto outputs = first.call<at::Tensor>("layer.forward", inputs);
    if (layers.empty()) return outputs;
    return rpc::call<at::Tensor>(layers.front().owner(), "chain", layers, outputs);
  }

  rpc::Session session_ = rpc::init(concat("worker", default_process_group().rank()));
  int rank_ = rpc::this_worker().rank;
  int world_size_ = static_cast<int>(rpc::workers().size());
};

TEST_F(RpcAutograd, GradientsAreThoseOfOneProcess) {
  if (rank_ == 0) {
    const auto far = rpc::remote(world_size_ - 1, "layer", 0);
    far.wait_until_ready();
    auto inputs = batch(3).requires_grad_();
    auto own = make_layer(1);
    auto remote_layer = make_layer(0);
    layer_output(own, layer_output(remote_layer, inputs)).square().mean().backward();
    const auto expected = inputs.grad().clone();

    rpc::AutogradContext context;
    auto there = far.call<at::Tensor>("layer.forward", inputs);
    auto own_again = make_layer(1);
    context.backward({layer_output(own_again, there).square().mean()});
    EXPECT_TRUE(torch::equal(context.gradient(inputs), expected));
    EXPECT_TRUE(torch::equal(context.gradient(own_again->weight), own->weight.grad()));
    EXPECT_FALSE(own_again->weight.grad().defined()) << "it stays in the context";
  }
  rpc::shutdown();
}

TEST_F(RpcAutograd, ParametersOnSeveralWorkersLearnAsInOneProcess) {
  constexpr int kSteps = 5;
  if (rank_ == 0) {
    std::vector<rpc::RRef> layers;
    std::vector<rpc::RRef> parameters;
    for (int i = 0; i < kLayers; ++i) {
      const int owner = (i + 1) % world_size_;
      layers.push_back(rpc::remote(owner, "layer", i));
      layers.back().wait_until_ready();
      for (int index : {0, 1}) {
        parameters.push_back(layers.back().remote("layer.parameter", index));
      }
    }
    rpc::DistributedOptimizer optimizer("sgd", parameters);
    for (int step = 0; step < kSteps; ++step) {
      rpc::AutogradContext context;
      context.backward({forward_chain(layers, batch(step)).square().mean()});
      optimizer.step(context);
    }
    const auto expected = train_alone(kSteps);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(parameters[i].to_here<at::Tensor>(), expected[i])) << i;
    }
  }
  rpc::shutdown();
}

TEST_F(RpcAutograd, OneGradientForTwoTensorsOfAMessage) {
  if (rank_ == 0) {
    rpc::AutogradContext context;
    const auto a = torch::ones({3}).requires_grad_();
    const auto b = torch::ones({3}).requires_grad_();
    const auto sum = rpc::call<at::Tensor>(world_size_ - 1, "sum", a, b);
    context.backward({(sum * torch::arange(3)).sum()});
    EXPECT_TRUE(torch::equal(context.gradient(a), torch::arange(3.0)));
    EXPECT_TRUE(torch::equal(context.gradient(b), torch::arange(3.0)));
  }
  rpc::shutdown();
}

// The way through the call would be missing in it, and with it every second derivative.
TEST_F(RpcAutograd, BackwardOfOneProcessThroughACallIsRefused) {
  if (rank_ == 0) {
    rpc::AutogradContext context;
    const auto x = torch::ones({3}).requires_grad_();
    const auto other = torch::ones({3}).requires_grad_();
    const auto y = x + rpc::call<at::Tensor>(world_size_ - 1, "sum", x * 2, x * 3) * other;
    const auto loss = y.square().sum();
    for (const bool create_graph : {false, true}) {
      const auto gradient = [&](const at::Tensor& of) {
        return torch::autograd::grad({loss}, {of}, {}, /*retain_graph=*/true, create_graph)[0];
      };
      EXPECT_SAYS(message_of<UsageError>([&] { gradient(x); }), "AutogradContext::backward");
      EXPECT_SAYS(message_of<UsageError>([&] { loss.backward({}, true, create_graph); }),
                  "AutogradContext::backward");
      EXPECT_TRUE(torch::equal(gradient(other), torch::full({3}, 60.0)));  // On this side of it.
    }
    other.mutable_grad().reset();
    context.backward({loss});
    EXPECT_TRUE(torch::equal(context.gradient(x), torch::full({3}, 72.0)));
    EXPECT_TRUE(torch::equal(context.gradient(other), torch::full({3}, 60.0)));
  }
  rpc::shutdown();
}

TEST_F(RpcAutograd, MisuseIsSaid) {
  if (rank_ == 0) {
    rpc::AutogradContext context;
    EXPECT_SAYS(message_of<UsageError>([] { rpc::AutogradContext second; }),
                "already has a context");
    EXPECT_SAYS(message_of<UsageError>([&] { context.backward({}); }), "no roots");
    EXPECT_SAYS(
        message_of<UsageError>([&] { context.backward({torch::ones(2).requires_grad_()}); }),
        "has 2 elements");
    EXPECT_SAYS(message_of<UsageError>([&] { context.backward({torch::ones({})}); }),
                "requires no gradient");
    EXPECT_SAYS(message_of<UsageError>([] { rpc::DistributedOptimizer("sgd", {}); }),
                "no parameters");
    EXPECT_FALSE(context.gradient(torch::ones(1)).defined());
  }
  rpc::shutdown();
}

}  // namespace
}  // namespace lockstep
