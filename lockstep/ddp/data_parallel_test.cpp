#include "lockstep/ddp/data_parallel.h"

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

namespace lockstep::testing {
namespace {

struct SplitNetImpl : torch::nn::Cloneable<SplitNetImpl> {
  SplitNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 9));
    norm = register_module("norm", torch::nn::BatchNorm1d(9));
    second = register_module("second", torch::nn::Linear(9, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(at::tanh(use_norm ? norm(first(x)) : first(x)));
  }
  bool use_norm = false;
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(SplitNet);

std::vector<c10::Device> cpus(int count) {
  return std::vector<c10::Device>(static_cast<std::size_t>(count), at::kCPU);
}

at::Tensor batch_of(std::int64_t size) {
  return at::sin(at::arange(size * 6, at::kFloat)).view({size, 6});
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

/// A module from a function, which gets the part of the batch it is called with.
template <class Function>
struct CallImpl : torch::nn::Cloneable<CallImpl<Function>> {
  explicit CallImpl(Function call) : function(std::make_shared<Function>(std::move(call))) {}
  void reset() override {}
  template <class... Args>
  auto forward(Args&&... args) {
    return (*function)(args...);
  }
  std::shared_ptr<const Function> function;
};

template <class Function>
auto parallel_call(int replicas, Function function, std::int64_t dim = 0) {
  return DataParallel(std::make_shared<CallImpl<Function>>(std::move(function)),
                      {.device_ids = cpus(replicas), .dim = dim});
}

TEST(DataParallel, EqualsOneDeviceInValuesAndGradients) {
  SplitNet net;
  for (const int replicas : {1, 2, 3, 8}) {
    DataParallel model(net, {.device_ids = cpus(replicas)});
    for (const std::int64_t size : {30, 10, 7, 2, 1, 0}) {
      SCOPED_TRACE(::testing::Message() << size << " over " << replicas);
      at::Tensor input = batch_of(size).requires_grad_();
      net->zero_grad();
      const at::Tensor expected = net->forward(input);
      expected.square().sum().backward();
      const auto gradients = gradients_of(*net);
      const at::Tensor input_gradient = input.grad().clone();

      net->zero_grad();
      input.mutable_grad() = at::Tensor();
      const at::Tensor output = model(input);
      EXPECT_TRUE(at::allclose(output, expected, 1e-5, 1e-6));
      output.square().sum().backward();
      const auto ours = gradients_of(*net);
      ASSERT_EQ(ours.size(), gradients.size());
      for (std::size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(at::allclose(ours[i], gradients[i], 1e-4, 1e-5));
      }
      EXPECT_TRUE(at::allclose(input.grad(), input_gradient, 1e-5, 1e-6));
    }
  }
}

TEST(DataParallel, IsDifferentiableTwice) {
  SplitNet net;
  DataParallel model(net, {.device_ids = cpus(3)});
  const auto penalty_gradients = [&](auto& module) {
    const at::Tensor input = batch_of(7).requires_grad_();
    const at::Tensor gradient =
        torch::autograd::grad({module(input).square().sum()}, {input}, {}, true, true)[0];
    net->zero_grad();
    gradient.square().sum().backward();
    return gradients_of(*net);
  };
  const auto expected = penalty_gradients(net);
  const auto actual = penalty_gradients(model);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-5)) << i;
  }
}

TEST(DataParallel, FollowsTheModuleThroughTraining) {
  SplitNet net;
  SplitNet whole(std::dynamic_pointer_cast<SplitNetImpl>(net->clone()));
  DataParallel model(net, {.device_ids = cpus(3)});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const at::Tensor input = batch_of(8);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    (model(input) - input.narrow(1, 0, 3)).square().mean().backward();
    (whole->forward(input) - input.narrow(1, 0, 3)).square().mean().backward();
    optimizer.step();
    reference.step();
  }
  EXPECT_TRUE(at::allclose(net->first->weight, whole->first->weight, 1e-4, 1e-5));
}

TEST(DataParallel, GathersOnTheOutputDevice) {
  SplitNet net;
  const at::Tensor expected = net->forward(batch_of(5));
  DataParallel on_cpu(net, {.device_ids = cpus(2), .output_device = at::kCPU});
  EXPECT_TRUE(at::allclose(on_cpu(batch_of(5)), expected, 1e-5, 1e-6));
  // One that is not among device_ids; also where there is work for one replica only.
  DataParallel on_meta(net, {.device_ids = cpus(2), .output_device = at::kMeta});
  for (const std::int64_t size : {5, 1}) {
    const at::Tensor output = on_meta(batch_of(size));
    EXPECT_TRUE(output.is_meta());
    EXPECT_EQ(output.size(0), size);
  }
}

TEST(DataParallel, SplitsAsPyTorchDoes) {
  auto sizes = parallel_call(8, [](const at::Tensor& x) { return at::full({1}, x.size(0)); });
  const auto expect_sizes = [&](std::int64_t batch, const std::vector<float>& expected) {
    EXPECT_TRUE(at::equal(sizes(at::zeros({batch, 2})).to(at::kFloat), at::tensor(expected)));
  };
  expect_sizes(30, {4, 4, 4, 4, 4, 4, 4, 2});
  expect_sizes(10, {2, 2, 2, 2, 2});
  expect_sizes(3, {1, 1, 1});
}

TEST(DataParallel, TakesAnyArgumentsAndGathersAnyResults) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  auto model = parallel_call(3, [](const at::Tensor& x, const std::vector<at::Tensor>& more,
                                   const std::optional<Pair>& pair, double factor,
                                   const at::Tensor& scalar) {
    EXPECT_EQ(x.size(0), more[0].size(0));
    EXPECT_EQ(x.size(0), pair->second.size(0));
    return std::tuple(x * factor, std::vector<at::Tensor>{more[0] + 1, x.sum()},
                      std::optional<at::Tensor>(pair->first * scalar), std::optional<at::Tensor>());
  });
  const at::Tensor x = at::arange(7, at::kFloat);
  const auto [scaled, list, optional, none] = model(
      x, std::vector<at::Tensor>{x}, std::optional<Pair>({x, x}), 2.0, at::scalar_tensor(5.0));
  EXPECT_TRUE(at::equal(scaled, x * 2));
  EXPECT_TRUE(at::equal(list[0], x + 1));
  EXPECT_TRUE(at::equal(list[1], at::tensor({3.F, 12.F, 6.F})));
  EXPECT_TRUE(at::equal(*optional, x * 5));
  EXPECT_FALSE(none.has_value());
}

TEST(DataParallel, SplitsAndGathersInAnotherDimension) {
  for (const std::int64_t dim : {1, -1}) {
    auto model = parallel_call(
        2, [](const at::Tensor& x) { return x + static_cast<double>(x.size(1)); }, dim);
    const at::Tensor x = at::arange(10, at::kFloat).view({2, 5});
    EXPECT_TRUE(at::equal(model(x).narrow(1, 0, 3), x.narrow(1, 0, 3) + 3));
    EXPECT_TRUE(at::equal(model(x).narrow(1, 3, 2), x.narrow(1, 3, 2) + 2));
  }
}

TEST(DataParallel, WithoutTensorsRunsOnce) {
  std::atomic<int> calls = 0;
  auto model = parallel_call(4, [&](int value) {
    ++calls;
    return at::full({1}, value);
  });
  EXPECT_EQ(model(3).item().toInt(), 3);
  EXPECT_EQ(calls, 1);
}

TEST(DataParallel, KeepsTheRunningStatisticsOfTheFirstReplica) {
  SplitNet net;
  net->use_norm = true;
  SplitNet part(std::dynamic_pointer_cast<SplitNetImpl>(net->clone()));
  DataParallel model(net, {.device_ids = cpus(2)});
  for (int step = 0; step < 3; ++step) {
    model(batch_of(9) + step);
    part->forward(batch_of(9).narrow(0, 0, 5) + step);
  }
  EXPECT_TRUE(at::allclose(net->norm->running_mean, part->norm->running_mean));
  EXPECT_EQ(net->norm->num_batches_tracked.item().toInt(), 3);
  // Evaluation uses them in every replica.
  model->eval();
  part->eval();
  EXPECT_TRUE(at::allclose(model(batch_of(9)), part->forward(batch_of(9)), 1e-5, 1e-6));
}

TEST(DataParallel, ThreadsHaveTheCallersGradModeAndAutocast) {
  auto model = parallel_call(3, [](const at::Tensor& x) {
    const bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
    const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
    return at::full({1}, (c10::GradMode::is_enabled() ? 1 : 0) + (autocast ? 2 : 0) +
                             (dtype == at::kHalf ? 4 : 0) + 0 * x.size(0));
  });
  const at::Tensor x = at::zeros({3, 1});
  EXPECT_TRUE(at::equal(model(x), at::full({3}, 1)));
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(model(x), at::full({3}, 0)));
  }
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  EXPECT_TRUE(at::equal(model(x), at::full({3}, 7)));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  EXPECT_TRUE(at::equal(model(x), at::full({3}, 1)));
}

TEST(DataParallel, DividesTheCoresAndLeavesTheCallersAsTheyWere) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  auto model = parallel_call(
      2, [](const at::Tensor& x) { return at::full({1}, at::get_num_threads() + 0 * x.size(0)); });
  EXPECT_TRUE(at::equal(model(at::zeros({2})), at::full({2}, 2)));
  EXPECT_EQ(at::get_num_threads(), 4);
  at::set_num_threads(before);
}

TEST(DataParallel, AFailureCarriesTheNumberOfTheFirstReplicaThatFailed) {
  auto model = parallel_call(4, [](const at::Tensor& x) {
    if (x[0].item().toInt() > 0) throw std::runtime_error("cannot take it\nand more");
    return x;
  });
  const at::Tensor x = at::tensor({0.F, 1.F, 0.F, 1.F});
  for (int attempt = 0; attempt < 2; ++attempt) {  // It stays usable.
    try {
      model(x);
      FAIL() << "nothing was thrown";
    } catch (const ReplicaFailed& error) {
      EXPECT_EQ(error.replica(), 1);
      EXPECT_STREQ(error.what(), "DataParallel: replica 1 of 4 on cpu: cannot take it");
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
  }
  EXPECT_TRUE(at::equal(model(at::zeros({4})), at::zeros({4})));
}

/// Uses its weight for parts of a batch that are not zero.
struct GatedImpl : torch::nn::Cloneable<GatedImpl> {
  GatedImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", at::full({3}, 2.0)); }
  at::Tensor forward(const at::Tensor& x) {
    return x.any().item().toBool() ? x * weight.square().sum() : x;
  }
  at::Tensor weight;
};
TORCH_MODULE(Gated);

TEST(DataParallel, AParameterThatOneReplicaAloneUsesGetsItsGradient) {
  Gated net;
  DataParallel model(net, {.device_ids = cpus(3)});
  model(at::tensor({0.F, 5.F, 0.F})).sum().backward();
  EXPECT_TRUE(at::equal(net->weight.grad(), at::full({3}, 20.0)));
}

TEST(DataParallel, NoticesParametersThatChangeBeforeBackward) {
  Gated net;
  DataParallel model(net, {.device_ids = cpus(2)});
  const at::Tensor loss = model(at::tensor({0.F, 1.F})).sum();
  {
    const at::NoGradGuard no_grad;
    net->weight.add_(1);
  }
  EXPECT_ANY_THROW(loss.backward());
}

TEST(DataParallel, GoesBackwardAfterAnEvaluationInBetween) {
  SplitNet net;
  DataParallel model(net, {.device_ids = cpus(2)});
  const at::Tensor loss = model(batch_of(4)).square().sum();
  {
    const at::NoGradGuard no_grad;
    model(batch_of(6));
  }
  net->first->weight.set_requires_grad(false);
  model(batch_of(6)).sum().backward();
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_TRUE(net->first->bias.grad().defined());
  net->first->weight.set_requires_grad(true);
  loss.backward();
  EXPECT_TRUE(net->second->weight.grad().defined());
}

TEST(DataParallel, TakesNoRandomNumbersOfTheProgram) {
  SplitNet net;
  at::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(5);
  DataParallel model(net, {.device_ids = cpus(3)});
  model(batch_of(6));
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

TEST(DataParallel, TakesLibTorchsContainers) {
  torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Linear(4, 2));
  DataParallel model(net, {.device_ids = cpus(2)});
  EXPECT_TRUE(at::allclose(model(batch_of(5)), net->forward(batch_of(5)), 1e-5, 1e-6));
}

TEST(DataParallel, SeveralAtATimeInThreadsOfTheirOwn) {
  SplitNet net;
  const at::Tensor expected = net->forward(batch_of(5)).detach();
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      DataParallel model(net, {.device_ids = cpus(2)});
      for (int step = 0; step < 5; ++step) {
        equal += at::allclose(model(batch_of(5)), expected, 1e-5, 1e-6) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 15);
}

struct NotCloneableImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 2));
};
TORCH_MODULE(NotCloneable);

struct AliasedImpl : torch::nn::Cloneable<AliasedImpl> {
  AliasedImpl() {
    weight = at::ones({6}).requires_grad_();
    reset();
  }
  void reset() override { register_parameter("weight", weight); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(Aliased);

template <class Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DataParallel, RefusesAModuleThatCannotBeCloned) {
  DataParallel model(NotCloneable(), {.device_ids = cpus(2)});
  EXPECT_EQ(model(batch_of(1)).size(0), 1);  // One replica is the module itself.
  const std::string message = refusal_of([&] { model(batch_of(2)); });
  EXPECT_NE(message.find("cannot be cloned: clone() has not been implemented"), std::string::npos)
      << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  DataParallel aliased(Aliased(), {.device_ids = cpus(2)});
  EXPECT_NE(refusal_of([&] { aliased(batch_of(2)); }).find("is not a copy"), std::string::npos);
}

TEST(DataParallel, RefusesWhatItCannotSplit) {
  auto model = parallel_call(4, [](const at::Tensor& x, const at::Tensor&) { return x; });
  EXPECT_NE(refusal_of([&] {
              model(at::zeros({8}), at::zeros({3}));
            }).find("an input of shape [3] makes 3 chunks in dimension 0, those before it 4"),
            std::string::npos);
  auto other = parallel_call(
      2, [](const at::Tensor& x) { return x; }, 1);
  EXPECT_NE(refusal_of([&] { other(at::zeros({8})); }).find("has no dimension 1"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
