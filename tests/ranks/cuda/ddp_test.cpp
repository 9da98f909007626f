// DistributedDataParallel with parameters on a CUDA device. The oracle is the same module in
// float64 on the CPU, trained on the batches of all ranks.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "tests/ranks/cuda/fixture.h"

namespace lockstep::testing {
namespace {

struct DeviceMlpImpl : torch::nn::Cloneable<DeviceMlpImpl> {
  DeviceMlpImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(12, 257));
    second = register_module("second", torch::nn::Linear(257, 300));
    third = register_module("third", torch::nn::Linear(300, 5));
    extra = register_module("extra", torch::nn::Linear(12, 5));
  }
  at::Tensor forward(const at::Tensor& x, bool with_extra = true) {
    const at::Tensor y = third(at::tanh(second(at::tanh(first(x)))));
    return with_extra ? y + extra(x) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, extra{nullptr};
};
TORCH_MODULE(DeviceMlp);

struct TableImpl : torch::nn::Module {
  TableImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(40, 6).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& indices) { return linear(table(indices)); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Table);

class CudaDdp : public CudaTest {
 protected:
  static constexpr std::int64_t kRows = 8;

  at::Tensor batch(int rank, int step) const { return wave(kRows, 12, 10.0 * step + rank); }

  template <class Holder>
  Holder on_cpu(const Holder& like) const {
    Holder copy;
    copy->to(at::kDouble);
    copy_state(*like, *copy);
    return copy;
  }

  template <class Holder>
  static Holder waves() {
    Holder net;
    const at::NoGradGuard no_grad;
    double seed = 0;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_(at::sin(at::arange(parameter.numel(), at::kDouble) * 0.7 + ++seed)
                          .mul_(0.2)
                          .view_as(parameter));
    }
    return net;
  }

  void expect_like(const torch::nn::Module& actual, const torch::nn::Module& expected,
                   double tolerance) const {
    const auto theirs = expected.named_parameters();
    Tensors all;
    for (const auto& item : actual.named_parameters()) {
      EXPECT_TRUE(is_near(item.value(), theirs[item.key()], tolerance)) << item.key();
      all.push_back(item.value().detach().contiguous());
    }
    EXPECT_TRUE(same_bits_everywhere(all));
  }

  /// Trains `steps` steps on the device, and the oracle on the mean of all ranks' losses.
  void expect_trains(const DistributedDataParallelOptions& options, int steps, double tolerance,
                     const std::function<bool(int rank, int step)>& uses_extra) const {
    DeviceMlp net = waves<DeviceMlp>();
    DeviceMlp oracle = on_cpu(net);
    net->to(device_);
    DistributedDataParallel model(net, options);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::optim::SGD reference(oracle->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      delay();
      const at::Tensor input = batch(rank_, step).to(on_device());
      model(input, uses_extra(rank_, step)).square().mean().backward();
      optimizer.step();
      reference.zero_grad();
      for (int rank = 0; rank < world_size_; ++rank) {
        const at::Tensor theirs = oracle->forward(batch(rank, step), uses_extra(rank, step));
        theirs.square().mean().div(world_size_).backward();
      }
      reference.step();
    }
    expect_like(*net, *oracle, tolerance);
  }

  static bool always(int, int) { return true; }
};

TEST_F(CudaDdp, TrainsAsOneProcessDoes) {
  NEEDS_CUDA_TENSORS();
  for (const bool as_view : {true, false}) {
    expect_trains({.bucket_cap_mb = 0.2, .gradient_as_bucket_view = as_view}, 6, 1e-4, always);
  }
}

TEST_F(CudaDdp, ParametersThatSomeRanksDoNotUseFollowTheOthers) {
  NEEDS_CUDA_TENSORS();
  expect_trains({.find_unused_parameters = true}, 7, 1e-4,
                [&](int rank, int step) { return step % 3 != 0 && (rank + step) % 2 == 0; });
}

TEST_F(CudaDdp, GradientsTravelInHalfPrecision) {
  NEEDS_CUDA_TENSORS();
  expect_trains({.exchange_dtype = at::kBFloat16}, 4, 2e-2, always);
}

TEST_F(CudaDdp, CommHooksAverageOnTheDevice) {
  NEEDS_CUDA_TENSORS();
  expect_trains({.comm_hook = std::make_shared<AllReduceHook>()}, 4, 1e-4, always);
  expect_trains({.comm_hook = std::make_shared<CompressHook>(at::kHalf)}, 4, 1e-2, always);
  expect_trains({.comm_hook = std::make_shared<QuantizeHook>()}, 4, 5e-2, always);
  // Of full rank it approximates nothing.
  expect_trains(
      {.comm_hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{.matrix_approximation_rank = 300,
                                                                   .start_power_sgd_iter = 2,
                                                                   .min_compression_rate = 1e-3})},
      5, 1e-3, always);
}

TEST_F(CudaDdp, MicroBatchesWithWeightsGiveTheMeanOfAllSamples) {
  NEEDS_CUDA_TENSORS();
  DeviceMlp net = waves<DeviceMlp>();
  DeviceMlp oracle = on_cpu(net);
  net->to(device_);
  DistributedDataParallel model(net, {.process_group = group_});
  const std::int64_t rows = 3 + rank_;
  std::int64_t all_rows = 0;
  for (int rank = 0; rank < world_size_; ++rank) all_rows += 2 * (3 + rank);
  for (int part = 0; part < 2; ++part) {
    const auto guard = model.no_sync(part == 0);
    delay();
    const at::Tensor input = batch(rank_, part).narrow(0, 0, rows).to(on_device());
    model.backward(model(input).square().mean(), {.weight = static_cast<double>(rows)});
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    for (int part = 0; part < 2; ++part) {
      const at::Tensor theirs = oracle->forward(batch(rank, part).narrow(0, 0, 3 + rank));
      (theirs.square().sum() / (5.0 * static_cast<double>(all_rows))).backward();
    }
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(is_near(net->parameters()[i].grad(), oracle->parameters()[i].grad(), 1e-4)) << i;
  }
}

TEST_F(CudaDdp, NormOfGradientsIsThatOfTheAverage) {
  NEEDS_CUDA_TENSORS();
  const auto expect_norm = [&](auto& model, const at::Tensor& loss) {
    loss.backward();
    double squares = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor& gradient = parameter.grad();
      const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      squares += dense.to(at::kDouble).square().sum().template item<double>();
    }
    EXPECT_NEAR(model.gradient_norm(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
    EXPECT_GT(squares, 0);
  };
  DeviceMlp net = waves<DeviceMlp>();
  net->to(device_);
  DistributedDataParallel model(net, {.gradient_norm = true});
  Table table = waves<Table>();
  table->to(device_);
  DistributedDataParallel sparse(table, {.gradient_norm = true});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    delay();
    expect_norm(model, model(batch(rank_, step).to(on_device())).square().mean());
    sparse->zero_grad();
    const at::Tensor indices = at::arange(3 + rank_, on_device(at::kLong)) * 7 + step;
    expect_norm(sparse, sparse(indices).square().sum());
  }
}

// As in a process whose machine has a device: the group is of the device, the model is not.
TEST_F(CudaDdp, NormOfGradientsOnTheHostInAGroupOfTheDevice) {
  if (world_size_ > 1 || !group_.device().is_cuda()) {
    GTEST_SKIP() << "of one rank, whose group is on a CUDA device";
  }
  DistributedDataParallel model(waves<DeviceMlp>(), {.gradient_norm = true});
  model(batch(0, 0).to(at::kFloat)).square().mean().backward();
  double squares = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(model.gradient_norm(), std::sqrt(squares), 1e-9 * std::sqrt(squares));
}

TEST_F(CudaDdp, SparseGradientsAreAveraged) {
  NEEDS_CUDA_TENSORS();
  Table net = waves<Table>();
  Table oracle = on_cpu(net);
  net->to(device_);
  DistributedDataParallel model(net, {.process_group = group_});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    oracle->zero_grad();
    delay();
    const auto indices = [&](int rank) { return at::arange(3 + rank, at::kLong) * 7 + step; };
    model(indices(rank_).to(device_)).square().sum().backward();
    for (int rank = 0; rank < world_size_; ++rank) {
      oracle->forward(indices(rank)).square().sum().div(world_size_).backward();
    }
    EXPECT_TRUE(is_near(net->table->weight.grad().to_dense(),
                        oracle->table->weight.grad().to_dense(), 1e-5));
    EXPECT_TRUE(is_near(net->linear->weight.grad(), oracle->linear->weight.grad(), 1e-5));
  }
}

// Streams of the program: the exchange and the optimizer must keep to the one that is current.
TEST_F(CudaDdp, KeepsToAStreamThatTheProgramHasMadeCurrent) {
  NEEDS_CUDA_TENSORS();
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const c10::StreamGuard stream(guard.getStreamFromGlobalPool(device_));
  expect_trains({.bucket_cap_mb = 0.2}, 4, 1e-4, always);
}

TEST_F(CudaDdp, OneCopyPerMachineRefusesTheDeviceInOneLine) {
  NEEDS_RANKS(2);
  const ProcessGroup group = group_of_all({.backend = "shm"});
  DeviceMlp net = waves<DeviceMlp>();
  net->to(device_);
  const std::string message = message_of<UsageError>([&] {
    DistributedDataParallel<DeviceMlpImpl>(net,
                                           {.process_group = group, .one_copy_per_machine = true});
  });
  EXPECT_SAYS(message, "cuda:0");
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(CudaDdp, ReplicasOfOneProcessGiveTheGradientsOfOneModule) {
  DeviceMlp net = waves<DeviceMlp>();
  DeviceMlp oracle = on_cpu(net);
  net->to(device_);
  DataParallel model(net, {.device_ids = {device_, device_, device_}});
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    oracle->zero_grad();
    delay();
    model(batch(0, step).to(on_device())).square().mean().backward();
    oracle->forward(batch(0, step)).square().mean().backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(is_near(net->parameters()[i].grad(), oracle->parameters()[i].grad(), 1e-4)) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
