#include "lockstep/ddp/comm_hook.h"

#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks/all_reduce_hook.h"
#include "lockstep/ddp/hooks/compress_hook.h"
#include "lockstep/ddp/hooks/noop_hook.h"
#include "lockstep/ddp/hooks/post_local_sgd_hook.h"
#include "lockstep/ddp/hooks/power_sgd_hook.h"
#include "lockstep/ddp/hooks/quantize_hook.h"
#include "lockstep/ddp/periodic_model_averager.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct HookedNetImpl : torch::nn::Module {
  HookedNetImpl() {
    first = register_module("first", torch::nn::Linear(20, 31));
    second = register_module("second", torch::nn::Linear(31, 23));
    unused = register_parameter("unused", at::ones({4}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(HookedNet);

using HookedModel = DistributedDataParallel<HookedNetImpl>;

class CommHooks : public DdpTest {
 protected:
  at::Tensor inputs(int step) const {
    return at::sin(at::arange(6 * 20, at::kFloat) * (1 + rank_) + step).view({6, 20});
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

  HookedModel make(std::shared_ptr<CommHook> hook, double bucket_cap_mb = 1) const {
    return HookedModel(HookedNet(), {.bucket_cap_mb = bucket_cap_mb, .comm_hook = std::move(hook)});
  }

  // The gradients of one step after another, each from the same parameters.
  Tensors gradients_of(HookedModel& model, int steps) const {
    Tensors gradients;
    for (int step = 0; step < steps; ++step) {
      model->zero_grad();
      loss_of(model(inputs(step))).backward();
      for (const at::Tensor& parameter : model->parameters()) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad().clone());
      }
    }
    return gradients;
  }

  // How far the gradients are from the averages, of which the largest is about 1.
  double largest_error(HookedModel& model, int step) const {
    HookedNet plain;
    copy_state(*model, *plain);
    model->zero_grad();
    loss_of(model(inputs(step))).backward();
    loss_of(plain(inputs(step))).backward();
    double error = 0;
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      if (!plain->parameters()[i].grad().defined()) continue;
      const at::Tensor average = plain->parameters()[i].grad().contiguous().clone();
      group_.all_reduce(average, {.op = ReduceOp::kAvg});
      const at::Tensor difference = model->parameters()[i].grad() - average;
      error = std::max(error, (difference.abs().max() / average.abs().max()).item<double>());
    }
    EXPECT_TRUE(same_bits_everywhere(gradients_now(model)));
    return error;
  }

  static Tensors gradients_now(const HookedModel& model) {
    Tensors gradients;
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad().contiguous());
    }
    return gradients;
  }
};

TEST_F(CommHooks, AllReduceIsWhatThereIsWithoutAHook) {
  for (const double cap : {1e-6, 1.0}) {
    HookedModel model = make(std::make_shared<AllReduceHook>(), cap);
    for (int step = 0; step < 3; ++step) {
      EXPECT_LT(largest_error(model, step), 1e-5);
      EXPECT_FALSE(model->unused.grad().defined());
    }
  }
}

TEST_F(CommHooks, GoWithAccumulationAndTheGradientNorm) {
  HookedModel model(HookedNet(),
                    {.gradient_norm = true, .comm_hook = std::make_shared<AllReduceHook>()});
  HookedNet plain;
  copy_state(*model, *plain);
  {
    const auto no_sync = model.no_sync();
    loss_of(model(inputs(0))).backward();
  }
  loss_of(model(inputs(1))).backward();
  for (int step = 0; step < 2; ++step) loss_of(plain(inputs(step))).backward();
  double squares = 0;
  for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
    if (!plain->parameters()[i].grad().defined()) continue;
    const at::Tensor average = plain->parameters()[i].grad().clone();
    group_.all_reduce(average, {.op = ReduceOp::kAvg});
    EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), average, 1e-4, 1e-6));
    squares += average.square().sum().item<double>();
  }
  EXPECT_NEAR(model.gradient_norm(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

TEST_F(CommHooks, CompressionRoundsAsItsDtypeDoes) {
  for (const auto& [dtype, error] : {std::pair(at::kHalf, 2e-3), std::pair(at::kBFloat16, 2e-2)}) {
    HookedModel model = make(std::make_shared<CompressHook>(dtype));
    EXPECT_LT(largest_error(model, 0), error);
    HookedModel wrapping =
        make(std::make_shared<CompressHook>(dtype, std::make_shared<AllReduceHook>()), 1e-6);
    EXPECT_LT(largest_error(wrapping, 0), error);
  }
  EXPECT_SAYS(message_of<UsageError>([] { CompressHook hook(at::kFloat); }), "dtype Float");
}

TEST_F(CommHooks, QuantizationIsWithinHalfAStep) {
  for (const std::int64_t chunk : {0, 1, 7, 512}) {
    HookedModel model =
        make(std::make_shared<QuantizeHook>(QuantizeOptions{.chunk_elements = chunk}));
    // A step is 1/255 of what lies between the smallest and the largest of all in a chunk.
    EXPECT_LT(largest_error(model, 0), chunk == 1 ? 1e-6 : 0.1);
    EXPECT_FALSE(model->unused.grad().defined());
  }
  EXPECT_SAYS(message_of<UsageError>([] { QuantizeHook hook({.chunk_elements = -1}); }), "-1");
}

TEST_F(CommHooks, NoopLeavesEachRankItsOwn) {
  HookedModel model = make(std::make_shared<NoopHook>());
  HookedNet plain;
  copy_state(*model, *plain);
  loss_of(model(inputs(0))).backward();
  loss_of(plain(inputs(0))).backward();
  EXPECT_TRUE(at::equal(model->first->weight.grad(), plain->first->weight.grad()));
}

TEST_F(CommHooks, PowerSgdIsExactAtFirstAndWhereItsRankIsFull) {
  const auto options = [](std::int64_t rank, bool batched) {
    return PowerSgdOptions{.matrix_approximation_rank = rank,
                           .start_power_sgd_iter = 2,
                           .min_compression_rate = 1e-3,
                           .batched = batched};
  };
  HookedModel model = make(std::make_shared<PowerSgdHook>(options(1, false)));
  EXPECT_LT(largest_error(model, 0), 1e-5);
  EXPECT_LT(largest_error(model, 1), 1e-5);
  EXPECT_GT(largest_error(model, 2), 1e-2);
  for (const bool batched : {false, true}) {
    HookedModel full = make(std::make_shared<PowerSgdHook>(options(100, batched)));
    for (int step = 0; step < 4; ++step) EXPECT_LT(largest_error(full, step), 1e-3) << batched;
  }
}

// What an approximation leaves out is not lost: in the long run the sum of what is applied is that
// of the averages.
TEST_F(CommHooks, PowerSgdFeedsBackWhatItLeavesOut) {
  for (const bool batched : {false, true}) {
    const auto hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{
        .matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .batched = batched});
    HookedModel model = make(hook);
    const HookedModel exact = make(nullptr);
    HookedNet plain;
    copy_state(*model, *plain);
    loss_of(plain(inputs(0))).backward();
    const at::Tensor average = plain->second->weight.grad().clone();
    group_.all_reduce(average, {.op = ReduceOp::kAvg});
    at::Tensor sum = at::zeros_like(average);
    constexpr int kSteps = 60;
    for (int step = 0; step < kSteps; ++step) {
      model->zero_grad();
      loss_of(model(inputs(0))).backward();
      sum += model->second->weight.grad();
    }
    const double error = ((sum / kSteps - average).norm() / average.norm()).item<double>();
    EXPECT_LT(error, batched ? 0.25 : 0.1);
    EXPECT_LT(hook->elements_after(), hook->elements_before());
  }
}

TEST_F(CommHooks, PowerSgdTrains) {
  for (const PowerSgdOptions& options :
       {PowerSgdOptions{.start_power_sgd_iter = 3},
        PowerSgdOptions{
            .start_power_sgd_iter = 3, .warm_start = false, .orthogonalization_epsilon = 1e-8},
        PowerSgdOptions{.matrix_approximation_rank = 2,
        .start_power_sgd_iter = 3,
        .use_error_feedback = false,
        .batched = true}}) {
    HookedModel model = make(std::make_shared<PowerSgdHook>(options));
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(model(inputs(0)));
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first);
    EXPECT_TRUE(same_bits_everywhere(model->parameters()));
  }
  EXPECT_SAYS(message_of<UsageError>([] { PowerSgdHook hook({.start_power_sgd_iter = 1}); }),
              "start_power_sgd_iter=1");
  EXPECT_SAYS(message_of<UsageError>([] { PowerSgdHook hook({.matrix_approximation_rank = 0}); }),
              "matrix_approximation_rank=0");
}

TEST_F(CommHooks, LocalSgdDriftsBetweenAverages) {
  const auto hook = std::make_shared<PostLocalSgdHook>(
      PostLocalSgdOptions{.start_local_sgd_iter = 2, .post_local_gradient_allreduce = false});
  HookedModel model = make(hook);
  PeriodicModelAverager averager({.period = 3, .warmup_steps = 2, .process_group = group_});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 9; ++step) {
    optimizer.zero_grad();
    loss_of(model(inputs(step))).backward();
    optimizer.step();
    const at::Tensor before = model->first->weight.detach().clone();
    averager.average_parameters(model.parameters());
    const bool averages = step >= 2 && (step - 2) % 3 == 0;
    if (averages) {
      group_.all_reduce(before, {.op = ReduceOp::kAvg});
      EXPECT_TRUE(at::allclose(model->first->weight, before)) << step;
    } else {
      EXPECT_TRUE(at::equal(model->first->weight, before)) << step;
    }
    const bool same = step < 3 || averages || world_size_ == 1;
    const at::Tensor weight = model->first->weight.detach();
    EXPECT_EQ(static_cast<bool>(same_bits_everywhere({weight})), same) << step;
  }
}

TEST_F(CommHooks, LocalSgdKeepsSubgroupsInStep) {
  if (world_size_ < 4) return;  // two pairs
  const ProcessGroup left = group_.new_group({0, 1});
  const ProcessGroup right = group_.new_group({2, 3});
  HookedModel model = make(std::make_shared<PostLocalSgdHook>(
      PostLocalSgdOptions{.start_local_sgd_iter = 0, .subgroup = left ? left : right}));
  HookedNet plain;
  copy_state(*model, *plain);
  loss_of(model(inputs(0))).backward();
  loss_of(plain(inputs(0))).backward();
  const at::Tensor average = plain->first->weight.grad().clone();
  (left ? left : right).all_reduce(average, {.op = ReduceOp::kAvg});
  EXPECT_TRUE(at::allclose(model->first->weight.grad(), average));
}

TEST_F(CommHooks, ThatDifferBetweenRanksAreRefused) {
  if (world_size_ == 1) return;  // nobody to differ from
  const std::string message = message_of<UsageError>([&] {
    make(std::make_shared<QuantizeHook>(QuantizeOptions{.chunk_elements = rank_ == 0 ? 0 : 512}));
  });
  EXPECT_SAYS(message, "quantize in chunks of 512");
}

TEST_F(CommHooks, PeriodsThatAreNoneAreRefused) {
  EXPECT_SAYS(message_of<UsageError>([&] { PeriodicModelAverager averager({.period = 0}); }),
              "period=0");
}

}  // namespace
}  // namespace lockstep::testing
