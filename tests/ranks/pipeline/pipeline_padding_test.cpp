// What adds nothing to a pipeline's step: micro-batches of padding, parameters that nobody uses.
#include <cmath>
#include <limits>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adamw.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "tests/ranks/pipeline/pipeline_fixture.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

// Of zeros it is 0, and gradients that come through, zeros too, become NaN.
struct RootImpl : nn::Module {
  at::Tensor forward(const at::Tensor& values) { return values.abs().sqrt(); }
};
TORCH_MODULE(Root);

// One parameter is used by inputs above 1000 only, and one never.
struct SparinglyImpl : nn::Module {
  at::Tensor forward(const at::Tensor& values) {
    const at::Tensor result = values * always;
    return values.max().item<double>() > 1000 ? result + sometimes : result;
  }
  at::Tensor always = register_parameter("always", at::full({6}, 0.5));
  at::Tensor sometimes = register_parameter("sometimes", at::full({6}, 0.5));
  at::Tensor never = register_parameter("never", at::full({6}, 0.5));
};
TORCH_MODULE(Sparingly);

class PipelinePadding : public PipelineTest {
 protected:
  static constexpr std::int64_t kPadding = -100;
  static constexpr int kMicroBatches = 5;

  static nn::Sequential make_rooted() {
    torch::manual_seed(7);
    const auto linear = [](std::int64_t inputs, std::int64_t outputs) {
      return nn::Linear(nn::LinearOptions(inputs, outputs).bias(false));
    };
    return nn::Sequential(linear(6, 8), Root(), linear(8, 8), Root(), linear(8, 8), Root(),
                          linear(8, 8), Root(), linear(8, 5));
  }
  static double count(const at::Tensor& targets) {
    return targets.ne(kPadding).sum().item<double>();
  }
  // No number for padding alone.
  static at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
    return at::cross_entropy_loss(outputs, targets);
  }
  // Micro-batches of two samples, of which two are padding, and zeros as padding is.
  static at::Tensor padded_targets() {
    at::Tensor targets = at::arange(2 * kMicroBatches, at::kLong).remainder(5);
    targets.narrow(0, 2, 2).fill_(kPadding);
    targets.narrow(0, 8, 2).fill_(kPadding);
    return targets;
  }
  static at::Tensor padded_inputs(int number = 0) {
    return make_inputs(2 * kMicroBatches, number) * padded_targets().ne(kPadding).unsqueeze(1);
  }
  // As step_uncut, of the samples that are no padding.
  static double step_counted(nn::Sequential& net, const at::Tensor& inputs,
                             const at::Tensor& targets, double of_all) {
    double mean = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      const at::Tensor of_targets = targets.narrow(0, 2 * i, 2);
      if (count(of_targets) == 0) continue;
      const at::Tensor loss = cross_entropy(net->forward(inputs.narrow(0, 2 * i, 2)), of_targets) *
                              (count(of_targets) / of_all);
      loss.backward();
      mean += loss.item<double>();
    }
    return mean;
  }
};

TEST_F(PipelinePadding, AMicroBatchOfWeightZeroIsLeftOut) {
  const at::Tensor inputs = padded_inputs(), targets = padded_targets();
  for (const Way& way : kWays) {
    for (const bool on_devices : {false, true}) {
      SCOPED_TRACE(concat(name_of(way.schedule), ", ", way.chunks_per_rank, " chunks",
                          on_devices ? " on devices" : ""));
      PipelineOptions options{.schedule = way.schedule,
                              .micro_batches = kMicroBatches,
                              .chunks_per_rank = way.chunks_per_rank,
                              .weight = count};
      if (on_devices) options.devices = {at::kCPU, at::kCPU};
      Pipeline pipeline(make_rooted(), options);
      nn::Sequential uncut = make_rooted();
      for (int step = 0; step < 2; ++step) {
        const double loss = pipeline.step(inputs, targets, cross_entropy);
        EXPECT_NEAR(loss, step_counted(uncut, inputs, targets, count(targets)), 1e-6);
      }
      expect_gradients_of(uncut, pipeline);
      EXPECT_NEAR(pipeline.evaluate(inputs, targets, cross_entropy),
                  cross_entropy(uncut->forward(inputs), targets).item<double>(), 1e-5);
    }
  }
}

TEST_F(PipelinePadding, AReplicaOfPaddingAloneAddsNothing) {
  const auto [row, column, ranks, replicas, replica] = make_grid();
  Pipeline pipeline(make_rooted(), {.process_group = row,
                                    .replicate_group = column,
                                    .micro_batches = kMicroBatches,
                                    .weight = count});
  const at::Tensor padding = at::full_like(padded_targets(), kPadding);
  const bool is_padding = replica == replicas - 1 && replicas > 1;
  const double loss =
      pipeline.step(is_padding ? at::zeros_like(padded_inputs()) : padded_inputs(replica),
                    is_padding ? padding : padded_targets(), cross_entropy);
  nn::Sequential uncut = make_rooted();
  const int counted = std::max(1, replicas - 1);
  double mean = 0;
  for (int i = 0; i < counted; ++i) {
    mean +=
        step_counted(uncut, padded_inputs(i), padded_targets(), counted * count(padded_targets()));
  }
  EXPECT_NEAR(loss, mean, 1e-6);
  expect_gradients_of(uncut, pipeline, /*exactly=*/false);
}

TEST_F(PipelinePadding, WeightsThatAreNoneAreRefused) {
  const auto [row, column, ranks, replicas, replica] = make_grid();
  const bool is_odd = replica == replicas - 1;
  for (const double odd : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Pipeline pipeline(make_net(), {.process_group = row,
                                   .replicate_group = column,
                                   .micro_batches = 2,
                                   .weight = [&](const at::Tensor& targets) {
                                     const bool is_first = targets[0][0].item<double>() == 1;
                                     return is_odd && is_first ? odd : 8.0;
                                   }});
    EXPECT_THROW(pipeline.step(make_inputs(4), make_targets(4), mean_square), Error) << odd;
    group_.barrier();
  }
  Pipeline pipeline(make_net(),
                    {.devices = {at::kCPU}, .weight = [](const at::Tensor&) { return 0; }});
  EXPECT_SAYS(
      message_of<UsageError>([&] { pipeline.step(make_inputs(4), make_targets(4), mean_square); }),
      "add up to 0; each must be 0 or more");
}

// It takes part in what the layer exchanges in backward; the samples of all replicas together are
// the layer's batch.
TEST_F(PipelinePadding, AMicroBatchOfWeightZeroTakesPartInSyncBatchNorm) {
  const auto [row, column, ranks, replicas, replica] = make_grid();
  const auto make = [](const auto& make_norm) {
    torch::manual_seed(7);
    return nn::Sequential(nn::Linear(6, 8), make_norm(), nn::Tanh(), nn::Linear(8, 8), make_norm(),
                          nn::Tanh(), nn::Linear(8, 5));
  };
  const auto targets_of = [&](int of) {
    // Of the first replica nothing is padding.
    return of == 0 ? at::arange(2 * kMicroBatches, at::kLong).remainder(5) : padded_targets();
  };
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
    Pipeline pipeline(
        make([&, column = column] { return SyncBatchNorm(8, {.process_group = column}); }),
        {.process_group = row,
         .replicate_group = column,
         .schedule = schedule,
         .micro_batches = kMicroBatches,
         .weight = count});
    nn::Sequential uncut = make([] { return nn::BatchNorm1d(8); });
    double of_all = 0;
    for (int of = 0; of < replicas; ++of) of_all += count(targets_of(of));
    for (int step = 0; step < 2; ++step) {
      const double loss = pipeline.step(make_inputs(2 * kMicroBatches, replica + replicas * step),
                                        targets_of(replica), cross_entropy);
      double mean = 0;
      for (int i = 0; i < kMicroBatches; ++i) {
        Tensors inputs;
        for (int of = 0; of < replicas; ++of) {
          inputs.push_back(
              make_inputs(2 * kMicroBatches, of + replicas * step).narrow(0, 2 * i, 2));
        }
        const Tensors outputs = uncut->forward(at::cat(inputs)).split(2);
        at::Tensor sum = at::zeros({});
        for (int of = 0; of < replicas; ++of) {
          const at::Tensor targets = targets_of(of).narrow(0, 2 * i, 2);
          if (count(targets) == 0) continue;
          sum = sum + cross_entropy(outputs[static_cast<std::size_t>(of)], targets) *
                          (count(targets) / of_all);
        }
        if (sum.requires_grad()) sum.backward();
        mean += sum.item<double>();
      }
      EXPECT_NEAR(loss, mean, 1e-5);
    }
    const auto expected = uncut->named_parameters();
    for (const auto& named : pipeline.named_parameters()) {
      EXPECT_TRUE(at::allclose(named.value().grad(), expected[named.key()].grad(), 1e-3, 1e-5))
          << named.key() << named.value().grad() << expected[named.key()].grad();
    }
  }
}

// Weight decay and momentum act on what has a gradient, be it zero: what no replica uses has none.
TEST_F(PipelinePadding, WhatNoReplicaUsesHasNoGradient) {
  const auto [row, column, ranks, replicas, replica] = make_grid();
  const auto make = [] {
    torch::manual_seed(7);
    return nn::Sequential(Sparingly(), nn::Linear(6, 5));
  };
  Pipeline pipeline(make(), {.process_group = row, .replicate_group = column, .micro_batches = 2});
  nn::Sequential uncut = make();
  torch::optim::AdamW ours(pipeline.parameters(),
                           torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  torch::optim::AdamW theirs(uncut->parameters(),
                             torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  // The last replica uses it in the second step, and what it leaves in .grad stays in the third.
  for (int step = 0; step < 4; ++step) {
    const auto inputs_of = [&](int of) {
      const bool uses = step == 1 && of == replicas - 1;
      return uses ? make_inputs(4, of) + 2000 : make_inputs(4, of);
    };
    if (step != 2) {
      pipeline.zero_grad();
      uncut->zero_grad();
    }
    pipeline.step(inputs_of(replica), make_targets(4, replica), mean_square);
    for (int i = 0; i < replicas; ++i) {
      step_uncut(uncut, inputs_of(i), make_targets(4, i), 2, mean_square, 4 * replicas);
    }
    expect_gradients_of(uncut, pipeline, /*exactly=*/false);
    ours.step();
    theirs.step();
  }
  const auto expected = uncut->named_parameters();
  for (const auto& named : pipeline.named_parameters()) {
    EXPECT_TRUE(at::allclose(named.value(), expected[named.key()], 1e-3, 1e-4)) << named.key();
  }
  EXPECT_TRUE(at::equal(expected["0.never"], at::full({6}, 0.5)));
}

TEST_F(PipelinePadding, ALayerThatIsThereTwiceHasItsParametersOnce) {
  nn::Linear twice(6, 6);
  const nn::Sequential net(twice, nn::Tanh(), twice);
  const Pipeline pipeline(net, {.devices = {at::kCPU}});
  EXPECT_EQ(pipeline.parameters().size(), 2U);
}

}  // namespace
}  // namespace lockstep::testing
