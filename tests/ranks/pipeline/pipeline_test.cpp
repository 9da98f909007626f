#include "lockstep/pipeline/pipeline.h"

#include <stdexcept>

#include <torch/nn/modules/embedding.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "tests/ranks/pipeline/pipeline_fixture.h"

namespace lockstep::testing {
namespace {

namespace nn = torch::nn;

class PipelineRanks : public PipelineTest {};

TEST_F(PipelineRanks, GradientsAndLossAreTheUncutNets) {
  for (const Way& way : kWays) {
    for (const int micro_batches : {1, 3, 4, 6}) {
      for (const std::int64_t samples : {1, 5, 13, 16}) {
        SCOPED_TRACE(concat(name_of(way.schedule), ", ", way.chunks_per_rank, " chunks, ",
                            micro_batches, " micro-batches of ", samples));
        Pipeline pipeline(make_net(), {.schedule = way.schedule,
                                       .micro_batches = micro_batches,
                                       .chunks_per_rank = way.chunks_per_rank});
        nn::Sequential uncut = make_net();
        const at::Tensor inputs = make_inputs(samples), targets = make_targets(samples);
        const double loss = pipeline.step(inputs, targets, mean_square);
        EXPECT_NEAR(loss, step_uncut(uncut, inputs, targets, micro_batches, mean_square), 1e-6);
        expect_gradients_of(uncut, pipeline);

        nn::Sequential at_once = make_net();
        mean_square(at_once->forward(inputs), targets).backward();
        expect_gradients_of(at_once, pipeline, /*exactly=*/false);
      }
    }
  }
}

TEST_F(PipelineRanks, StepsAccumulateAndSizesMayChange) {
  Pipeline pipeline(make_net(), {.micro_batches = 3});
  nn::Sequential uncut = make_net();
  int number = 0;
  for (const std::int64_t samples : {7, 2, 9}) {
    const at::Tensor inputs = make_inputs(samples, ++number), targets = make_targets(samples);
    pipeline.step(inputs, targets, mean_square);
    step_uncut(uncut, inputs, targets, 3, mean_square);
  }
  expect_gradients_of(uncut, pipeline);
  pipeline.zero_grad();
  for (const at::Tensor& parameter : pipeline.parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

// A micro-batch has 425 kB between stages, more than a channel of shared memory holds, in both
// directions.
TEST_F(PipelineRanks, LargeActivations) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(concat(name_of(way.schedule), " ", way.chunks_per_rank));
    Pipeline pipeline(
        make_net(256),
        {.schedule = way.schedule, .micro_batches = 4, .chunks_per_rank = way.chunks_per_rank});
    nn::Sequential uncut = make_net(256);
    const at::Tensor inputs = make_inputs(1700), targets = make_targets(1700);
    for (int step = 0; step < 2; ++step) {
      pipeline.step(inputs, targets, mean_square);
      step_uncut(uncut, inputs, targets, 4, mean_square);
    }
    expect_gradients_of(uncut, pipeline);
  }
}

TEST_F(PipelineRanks, TokensAndFrozenLayers) {
  const auto net_of_tokens = [] {
    torch::manual_seed(3);
    nn::Sequential net(nn::Embedding(11, 6), nn::Flatten(), nn::Linear(24, 8), nn::Tanh(),
                       nn::Linear(8, 4));
    for (at::Tensor& parameter : (*net)[0]->parameters()) parameter.requires_grad_(false);
    return net;
  };
  const int most = std::min(world_size_, 4);
  std::vector<std::int64_t> by_hand{1, 2, 4};
  by_hand.resize(static_cast<std::size_t>(most - 1));
  Pipeline pipeline(net_of_tokens(), {.micro_batches = 2, .cuts = by_hand});
  nn::Sequential uncut = net_of_tokens();
  const at::Tensor tokens = at::arange(28, at::kLong).remainder(11).view({7, 4});
  const at::Tensor classes = at::arange(7, at::kLong).remainder(4);
  const auto loss = [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::cross_entropy_loss(outputs, targets);
  };
  EXPECT_NEAR(pipeline.step(tokens, classes, loss), step_uncut(uncut, tokens, classes, 2, loss),
              1e-6);
  expect_gradients_of(uncut, pipeline);
}

TEST_F(PipelineRanks, WeightsCountWhatTheLossIsAMeanOf) {
  const auto counted = [](const at::Tensor& targets) { return targets.ge(0).sum().item<double>(); };
  const auto loss = [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::cross_entropy_loss(outputs, targets, {}, at::Reduction::Mean, /*ignore_index=*/-1);
  };
  const at::Tensor targets = at::tensor({0, -1, -1, 3, 2, 1, -1}, at::kLong);
  const at::Tensor inputs = make_inputs(7);
  Pipeline pipeline(make_net(), {.micro_batches = 3, .weight = counted});
  nn::Sequential uncut = make_net();
  const at::Tensor expected = loss(uncut->forward(inputs), targets);
  expected.backward();
  EXPECT_NEAR(pipeline.step(inputs, targets, loss), expected.item<double>(), 1e-6);
  expect_gradients_of(uncut, pipeline, /*exactly=*/false);
}

TEST_F(PipelineRanks, EvaluationAndOutputs) {
  for (const Way& way : kWays) {
    Pipeline pipeline(
        make_net(),
        {.schedule = way.schedule, .micro_batches = 3, .chunks_per_rank = way.chunks_per_rank});
    pipeline.eval();
    nn::Sequential uncut = make_net();
    const at::NoGradGuard no_grad;
    const at::Tensor inputs = make_inputs(8), targets = make_targets(8);
    EXPECT_NEAR(pipeline.evaluate(inputs, targets, mean_square),
                mean_square(uncut->forward(inputs), targets).item<double>(), 1e-6);
    const at::Tensor outputs = pipeline.forward(inputs);
    ASSERT_EQ(outputs.defined(), rank_ == world_size_ - 1);
    if (outputs.defined()) {
      EXPECT_TRUE(at::allclose(outputs, uncut->forward(inputs)));
    }
    for (const at::Tensor& parameter : pipeline.parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

TEST_F(PipelineRanks, InputsOnTheFirstRankAndTargetsOnTheLastAreEnough) {
  Pipeline pipeline(make_net(), {.micro_batches = 3});
  nn::Sequential uncut = make_net();
  const at::Tensor inputs = make_inputs(7), targets = make_targets(7);
  const bool is_first = rank_ == 0, is_last = rank_ == world_size_ - 1;
  pipeline.step(is_first ? inputs : at::Tensor(), is_last || !is_first ? targets : at::Tensor(),
                mean_square);
  step_uncut(uncut, inputs, targets, 3, mean_square);
  expect_gradients_of(uncut, pipeline);
}

TEST_F(PipelineRanks, ReplicasTrainOnAllSamplesTogether) {
  const Grid grid = make_grid();
  const auto [row, column, ranks, replicas, replica] = grid;
  nn::Sequential net = make_net();
  for (at::Tensor& parameter : net->parameters()) {  // Only the first replica's count.
    const at::NoGradGuard no_grad;
    if (replica > 0) parameter.add_(replica);
  }
  Pipeline pipeline(net, {.process_group = row, .replicate_group = column, .micro_batches = 3});
  nn::Sequential uncut = make_net();
  // Sizes differ between replicas, and the second step adds to the first.
  for (int step = 0; step < 2; ++step) {
    std::int64_t all = 0;
    double mean = 0;
    for (int i = 0; i < replicas; ++i) all += 4 + 3 * i;
    for (int i = 0; i < replicas; ++i) {
      mean += step_uncut(uncut, make_inputs(4 + 3 * i, i + step), make_targets(4 + 3 * i, i), 3,
                         mean_square, all);
    }
    const std::int64_t samples = 4 + 3 * replica;
    const double loss = pipeline.step(make_inputs(samples, replica + step),
                                      make_targets(samples, replica), mean_square);
    EXPECT_NEAR(loss, mean, 1e-6);
  }
  expect_gradients_of(uncut, pipeline, /*exactly=*/false);
  for (const at::Tensor& parameter : pipeline.parameters()) {
    Tensors gathered;
    for (int i = 0; i < replicas; ++i) gathered.push_back(at::empty_like(parameter.grad()));
    column.all_gather(gathered, parameter.grad());
    for (const at::Tensor& each : gathered) EXPECT_TRUE(at::equal(each, gathered[0]));
  }
}

TEST_F(PipelineRanks, DevicesOfOneProcess) {
  for (const Way& way : kWays) {
    for (const int devices : {1, 2, 3}) {
      SCOPED_TRACE(concat(name_of(way.schedule), " on ", devices));
      const std::vector<c10::Device> cpus(static_cast<std::size_t>(devices), at::kCPU);
      Pipeline pipeline(make_net(), {.devices = cpus,
                                     .schedule = way.schedule,
                                     .micro_batches = 4,
                                     .chunks_per_rank = way.chunks_per_rank});
      nn::Sequential uncut = make_net();
      const at::Tensor inputs = make_inputs(13), targets = make_targets(13);
      EXPECT_NEAR(pipeline.step(inputs, targets, mean_square),
                  step_uncut(uncut, inputs, targets, 4, mean_square), 1e-6);
      EXPECT_EQ(pipeline.parameters().size(), uncut->parameters().size());
      expect_gradients_of(uncut, pipeline);
      EXPECT_TRUE(at::allclose(pipeline.forward(inputs), uncut->forward(inputs)));
    }
  }
}

TEST_F(PipelineRanks, StagesOfTheirOwn) {
  const int chunks = 2;
  const auto parts = cut_into_stages(
      make_net(), world_size_ == 1   ? std::vector<std::int64_t>{4}
                  : world_size_ == 2 ? std::vector<std::int64_t>{2, 4, 6}
                  : world_size_ == 3 ? std::vector<std::int64_t>{1, 2, 4, 6, 8}
                                     : std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
  const std::vector<nn::Sequential> own{parts[static_cast<std::size_t>(rank_)],
                                        parts[static_cast<std::size_t>(rank_ + world_size_)]};
  Pipeline pipeline(own, {.schedule = PipelineSchedule::kInterleaved1F1B,
                          .micro_batches = 4,
                          .chunks_per_rank = chunks});
  nn::Sequential uncut = make_net();
  const at::Tensor inputs = make_inputs(9), targets = make_targets(9);
  pipeline.step(inputs, targets, mean_square);
  step_uncut(uncut, inputs, targets, 4, mean_square);
  expect_gradients_of(uncut, pipeline);
}

TEST_F(PipelineRanks, StagesWithLayersOfTheSameNames) {
  std::vector<nn::Sequential> own;
  for (int chunk = 0; chunk < 2; ++chunk) own.push_back(nn::Sequential(nn::Linear(3, 3)));
  Pipeline pipeline(
      own,
      {.schedule = PipelineSchedule::kInterleaved1F1B, .micro_batches = 2, .chunks_per_rank = 2});
  pipeline.step(at::ones({4, 3}), at::ones({4, 3}), mean_square);
  EXPECT_EQ(pipeline.parameters().size(), 4U);
  for (const at::Tensor& parameter : pipeline.parameters()) EXPECT_TRUE(parameter.grad().defined());
  EXPECT_SAYS(message_of<UsageError>([&] { pipeline.named_parameters(); }),
              "two stages of this process have a parameter '0.weight'");
}

// What lies before it learns nothing, and is not waited for.
TEST_F(PipelineRanks, AStageThatLetsNoGradientThrough) {
  struct Stop : nn::Module {
    at::Tensor forward(const at::Tensor& values) { return values.detach(); }
  };
  nn::Sequential net(nn::Linear(3, 3), nn::Linear(3, 3), std::make_shared<Stop>(), nn::Linear(3, 3),
                     nn::Linear(3, 3));
  Pipeline pipeline(net, {.micro_batches = 2});
  pipeline.step(at::ones({4, 3}), at::ones({4, 3}), mean_square);
  const auto has_gradient = [](const at::Tensor& parameter) {
    return parameter.grad().defined() && parameter.grad().abs().sum().item<double>() > 0;
  };
  if (rank_ == world_size_ - 1) {
    EXPECT_TRUE(has_gradient(pipeline.parameters().back()));
  }
  if (rank_ == 0) {
    EXPECT_FALSE(pipeline.parameters().front().grad().defined());
  }
}

TEST_F(PipelineRanks, MeasuredCostsAreRankZerosOnAllRanks) {
  nn::Sequential net = make_net(64);
  const auto costs = measured_costs(net, make_inputs(8), {.process_group = group_});
  const at::Tensor figures = at::tensor(costs, at::kDouble);
  EXPECT_TRUE(same_bits_everywhere({figures}));
  EXPECT_EQ(costs.size(), 9u);
}

TEST_F(PipelineRanks, OptionsThatDoNotFitAreRefusedOnAllRanks) {
  EXPECT_THROW(Pipeline(make_net(), {.micro_batches = 0}), UsageError);
  EXPECT_THROW(Pipeline(make_net(), {.chunks_per_rank = 2}), UsageError);
  EXPECT_THROW(Pipeline(make_net(), {.cuts = {1, 2, 3, 4, 5}}), UsageError);
  EXPECT_THROW(Pipeline(nn::Sequential(), PipelineOptions{}), UsageError);
  EXPECT_THROW(Pipeline(std::vector<nn::Sequential>(3, make_net()), PipelineOptions{}), UsageError);
  NEEDS_RANKS(2);
  const std::string message =
      message_of<UsageError>([&] { Pipeline(make_net(), {.micro_batches = rank_ == 1 ? 3 : 4}); });
  EXPECT_SAYS(message, "rank 0 has micro_batches=4, rank 1 has micro_batches=3; ");
  // What one rank alone would refuse, all do.
  EXPECT_THROW(Pipeline(make_net(), {.micro_batches = rank_ == 1 ? 0 : 4}), UsageError);
  EXPECT_THROW(Pipeline(rank_ == 1 ? nn::Sequential() : make_net(), PipelineOptions{}), UsageError);
  EXPECT_THROW(
      Pipeline(std::vector<nn::Sequential>(rank_ == 1 ? 2 : 1, make_net()), PipelineOptions{}),
      UsageError);
}

TEST_F(PipelineRanks, WhatOneRankThrowsEndsTheStepOfAll) {
  const auto failing = [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("no loss today");
  };
  const int last = world_size_ - 1;
  for (const Way& way : kWays) {
    Pipeline pipeline(
        make_net(),
        {.schedule = way.schedule, .micro_batches = 4, .chunks_per_rank = way.chunks_per_rank});
    const auto step = [&] { pipeline.step(make_inputs(8), make_targets(8), failing); };
    if (rank_ == last) {
      EXPECT_THROW(step(), std::runtime_error);
    } else {
      const auto error = error_of<PeerFailed>(step);
      EXPECT_EQ(error.rank(), last);
      EXPECT_SAYS(std::string(error.what()),
                  concat("rank ", last, " aborted the step: no loss today"));
    }
    group_.barrier();
  }
}

TEST_F(PipelineRanks, BatchesThatDoNotFitAreRefused) {
  Pipeline alone(make_net(), {.devices = {at::kCPU, at::kCPU}});
  EXPECT_THROW(alone.step(make_inputs(4), make_targets(3), mean_square), UsageError);
  EXPECT_THROW(alone.step(make_inputs(0), make_targets(0), mean_square), UsageError);
  EXPECT_THROW(alone.step({}, {}, mean_square), UsageError);
  EXPECT_THROW(alone.step({}, make_targets(3), mean_square), UsageError);
  EXPECT_THROW(alone.step(make_inputs(3), {}, mean_square), UsageError);
  EXPECT_THROW(alone.step(make_inputs(4), make_targets(4),
                          [](const at::Tensor& outputs, const at::Tensor&) { return outputs; }),
               UsageError);
  NEEDS_RANKS(2);
  Pipeline pipeline(make_net(), {.micro_batches = 8});
  const int samples = rank_ == world_size_ - 1 ? 5 : 6;
  EXPECT_THROW(pipeline.step(make_inputs(samples), make_targets(samples), mean_square), Error);
  group_.barrier();
}

}  // namespace
}  // namespace lockstep::testing
