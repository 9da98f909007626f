#include "lockstep/ddp/comm_hook.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/ddp/hooks.h"
#include "tests/ranks/ddp/comm_hook_fixture.h"

namespace lockstep::testing {
namespace {

class CommHooks : public CommHookTest {};

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
  NEEDS_RANKS(4);  // two pairs
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
  NEEDS_RANKS(2);
  const std::string message = message_of<UsageError>([&] {
    make(std::make_shared<QuantizeHook>(QuantizeOptions{.chunk_elements = rank_ == 0 ? 0 : 512}));
  });
  EXPECT_SAYS(message, "quantize in chunks of 512");
}

TEST_F(CommHooks, ServeOneModel) {
  const auto compressed = std::make_shared<NoopHook>();
  const std::shared_ptr<CommHook> hooks[] = {
      std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_power_sgd_iter = 2}),
      std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{.start_local_sgd_iter = 1}),
      std::make_shared<CompressHook>(at::kHalf, compressed)};
  for (const auto& hook : hooks) {
    HookedModel model = make(hook);
    EXPECT_SAYS(message_of<UsageError>([&] { make(hook); }),
                "comm_hook '" + hook->describe() + "' is already used by another model");
    for (int step = 0; step < 3; ++step) loss_of(model(inputs(step))).backward();
  }
  EXPECT_SAYS(message_of<UsageError>([&] { CompressHook second(at::kHalf, compressed); }),
              "comm_hook 'noop'");
}

TEST_F(CommHooks, ThatLetReplicasDifferGoWithoutTheirComparison) {
  const auto refusal = [&](std::shared_ptr<CommHook> hook) {
    return message_of<UsageError>([&] {
      HookedModel(HookedNet(), {.check_replicas_every = 5, .comm_hook = std::move(hook)});
    });
  };
  EXPECT_SAYS(refusal(std::make_shared<NoopHook>()),
              "check_replicas_every=5 with comm_hook 'noop'");
  EXPECT_SAYS(refusal(std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{})),
              "with comm_hook 'post_local_sgd");
  EXPECT_SAYS(refusal(std::make_shared<CompressHook>(at::kHalf, std::make_shared<NoopHook>())),
              "with comm_hook 'compress to Half for noop'");
  EXPECT_EQ(refusal(std::make_shared<CompressHook>(at::kHalf)), "no error");
}

TEST_F(CommHooks, ThatLetReplicasDifferGoWithoutGradientNorm) {
  const auto refusal = [&](std::shared_ptr<CommHook> hook) {
    return message_of<UsageError>(
        [&] { HookedModel(HookedNet(), {.gradient_norm = true, .comm_hook = std::move(hook)}); });
  };
  EXPECT_SAYS(refusal(std::make_shared<NoopHook>()), "gradient_norm with comm_hook 'noop'");
  EXPECT_SAYS(refusal(std::make_shared<PostLocalSgdHook>(PostLocalSgdOptions{})),
              "gradient_norm with comm_hook 'post_local_sgd");
  EXPECT_EQ(refusal(std::make_shared<CompressHook>(at::kHalf)), "no error");
}

struct Failing final : CommHook {
  std::string describe() const override { return "failing"; }
  std::function<void()> start(const ProcessGroup&, const HookBucket&) override {
    throw UsageError("no more");
  }
};

TEST_F(CommHooks, MayThrowOutOfBackward) {
  const ProcessGroup group = group_of_all();
  HookedModel model(HookedNet(),
                    {.process_group = group, .comm_hook = std::make_shared<Failing>()});
  EXPECT_SAYS(message_of<UsageError>([&] { loss_of(model(inputs(0))).backward(); }), "no more");
  EXPECT_SAYS(message_of<UsageError>([&] { model(inputs(0)); }),
              "after an error in backward() wrap the module again");
}

TEST_F(CommHooks, StepsThatAreNoneAreRefused) {
  EXPECT_SAYS(message_of<UsageError>([] { PostLocalSgdHook hook({.start_local_sgd_iter = -1}); }),
              "start_local_sgd_iter=-1");
  EXPECT_SAYS(message_of<UsageError>([&] { PeriodicModelAverager averager({.period = 0}); }),
              "period=0");
}

}  // namespace
}  // namespace lockstep::testing
