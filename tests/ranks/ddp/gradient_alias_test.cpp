// Gradients whose memory is somebody else's, too: autograd hands views on without a copy, so that
// .grad may be an upstream gradient, or another parameter's.
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/clip_grad.h"
#include "tests/ranks/ddp_fixture.h"

namespace lockstep::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kLarge = 5'000;  // rows: 320 KB, averaged by themselves over shared memory
constexpr std::int64_t kSmall = 3;

// The gradient of the result is that of `first`, of `second` (as a view) and of the layer.
struct SumsImpl : torch::nn::Module {
  explicit SumsImpl(std::int64_t rows) {
    layer = register_module("layer", torch::nn::Linear(kWidth, kWidth));
    first = register_parameter("first", at::zeros({rows, kWidth}));
    second = register_parameter("second", at::ones({rows, kWidth}));
  }
  at::Tensor forward(const at::Tensor& x, bool twice = false) {
    hidden = layer(x);
    const at::Tensor sum = between(hidden) + first.unsqueeze(0) + second.unsqueeze(0);
    return twice ? sum + second.unsqueeze(0) : sum;
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor first;
  at::Tensor second;
  at::Tensor hidden;
  std::function<at::Tensor(const at::Tensor&)> between = [](const at::Tensor& x) { return x; };
};
TORCH_MODULE(Sums);

// Hands the gradient on once the gradients of the sum's other terms have been exchanged.
struct Late : torch::autograd::Function<Late> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroup* group) {
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(group);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto* const group =
        reinterpret_cast<const ProcessGroup*>(context->saved_data["group"].toInt());
    const at::Tensor before = gradients[0].clone();
    for (int round = 0; round < 20; ++round) group->barrier();
    EXPECT_TRUE(at::equal(gradients[0], before)) << "somebody wrote to it";
    return {gradients[0], at::Tensor()};
  }
};

class GradientAlias : public DdpTest {
 protected:
  at::Tensor inputs(std::int64_t rows, int step) const {
    return at::sin(at::arange(rows * kWidth, at::kFloat) * (1 + rank_) + step)
        .view({1, rows, kWidth});
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

  static std::vector<DistributedDataParallelOptions> all_options() {
    return {{}, {.gradient_as_bucket_view = false}, {.gradient_norm = true}};
  }
};

TEST_F(GradientAlias, OfAnUpstreamGradientIsNotWrittenWhileAutogradReadsIt) {
  const ProcessGroup beside = group_.new_group(all_ranks());
  for (const std::int64_t rows : {kSmall, kLarge}) {
    for (const DistributedDataParallelOptions& options : all_options()) {
      DistributedDataParallel model(Sums(rows), options);
      model->between = [&](const at::Tensor& x) { return Late::apply(x, &beside); };
      for (int step = 0; step < 3; ++step) {
        expect_average_of(
            model, [&](auto& sums) { loss_of(sums(inputs(rows, step))).backward(); }, Sums(rows));
      }
    }
  }
}

TEST_F(GradientAlias, OfAGradientThatTheProgramKeepsLeavesItThisRanks) {
  for (const std::int64_t rows : {kSmall, kLarge}) {
    for (const DistributedDataParallelOptions& options : all_options()) {
      DistributedDataParallel model(Sums(rows), options);
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        const at::Tensor outputs = model(inputs(rows, step));
        at::Tensor kept;
        model->hidden.register_hook([&](const at::Tensor& gradient) { kept = gradient; });
        loss_of(outputs).backward();
        EXPECT_TRUE(at::allclose(kept, outputs.detach() * 2 / outputs.numel(), 1e-5, 0));
      }
    }
  }
}

TEST_F(GradientAlias, OfAnotherParametersGradientIsWeightedOnce) {
  for (const std::int64_t rows : {kSmall, kLarge}) {
    for (const DistributedDataParallelOptions& options : all_options()) {
      DistributedDataParallel model(Sums(rows), options);
      Sums plain(rows);
      copy_state(*model, *plain);
      for (int step = 0; step < 3; ++step) {
        // The two gradients differ on rank 0 alone: elsewhere they may share memory.
        const double weight = 1 + rank_;
        model->zero_grad();
        model.backward(loss_of(model(inputs(rows, step), rank_ == 0)), {.weight = weight});
        plain->zero_grad();
        (loss_of(plain(inputs(rows, step), rank_ == 0)) * weight).backward();
        for (const at::Tensor& parameter : plain->parameters()) {
          at::Tensor sum = parameter.grad().clone();
          group_.all_reduce(sum);
          parameter.mutable_grad() = sum / (world_size_ * (world_size_ + 1) / 2.0);
        }
        expect_close_gradients(model->parameters(), plain->parameters());
      }
    }
  }
}

// Autograd adds in place: to both gradients where they share memory.
TEST_F(GradientAlias, OfAnotherParametersGradientIsAddedToOnce) {
  for (const std::int64_t rows : {kSmall, kLarge}) {
    for (const DistributedDataParallelOptions& options : all_options()) {
      DistributedDataParallel model(Sums(rows), options);
      for (int round = 0; round < 2; ++round) {
        model->zero_grad();
        at::Tensor expected = at::zeros_like(model->first);
        for (int step = 0; step < 3; ++step) {
          const auto no_sync = model.no_sync(step < 2);
          const at::Tensor outputs = model(inputs(rows, step));
          loss_of(outputs).backward();
          expected += outputs.detach()[0] * 2 / outputs.numel();
        }
        group_.all_reduce(expected, {.op = ReduceOp::kAvg});
        EXPECT_TRUE(at::allclose(model->first.grad(), expected, 1e-5, 1e-9));
        EXPECT_TRUE(at::allclose(model->second.grad(), expected, 1e-5, 1e-9));
      }
    }
  }
}

TEST_F(GradientAlias, ThatTheProgramMadeIsAveragedOnce) {
  for (const std::int64_t rows : {kSmall, kLarge}) {
    DistributedDataParallel model(Sums(rows), {});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const at::Tensor loss = model->layer(inputs(rows, step)).square().mean();
      model->first.mutable_grad() =
          group_.allocate_tensor(rows * kWidth, at::kFloat).view({rows, kWidth}).fill_(1 + rank_);
      model->second.mutable_grad() = model->first.grad();
      model.backward(loss, {.weight = 2});  // reaches neither
      const at::Tensor expected = at::full_like(model->first, (1 + world_size_) / 4.0);
      EXPECT_TRUE(at::allclose(model->first.grad(), expected, 1e-6, 0));
      EXPECT_TRUE(at::allclose(model->second.grad(), expected, 1e-6, 0));
    }
  }
}

TEST_F(GradientAlias, OfNobodyIsAveragedWhereAutogradWroteIt) {
  DistributedDataParallel model(torch::nn::Linear(300, 300), {});
  const void* written = nullptr;
  // The gradient of the weight is a view: the layer transposes it.
  model->weight.register_hook(
      [&](const at::Tensor& gradient) { written = gradient.const_data_ptr(); });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    loss_of(model(at::sin(at::arange(600, at::kFloat) + rank_ + step).view({2, 300}))).backward();
    const bool in_place = world_size_ == 1 || group_.shares_memory();
    EXPECT_EQ(model->weight.grad().const_data_ptr() == written, in_place) << step;
  }
}

}  // namespace
}  // namespace lockstep::testing
