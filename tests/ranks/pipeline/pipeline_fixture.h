#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "lockstep/pipeline/pipeline.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {

/// What the tests of Pipeline share: a net, batches, and the whole net as oracle.
class PipelineTest : public Conformance {
 protected:
  struct Way {
    PipelineSchedule schedule = PipelineSchedule::k1F1B;
    int chunks_per_rank = 1;
  };

  static constexpr Way kWays[] = {{PipelineSchedule::kGPipe, 1},
                                  {PipelineSchedule::k1F1B, 1},
                                  {PipelineSchedule::kInterleaved1F1B, 1},
                                  {PipelineSchedule::kInterleaved1F1B, 2}};

  /// Ranks as a grid: a rank's pipeline is its row, and its replicas are its column.
  struct Grid {
    ProcessGroup row;
    ProcessGroup column;
    int ranks = 1;  ///< of a row
    int replicas = 1;
    int replica = 0;  ///< this rank's
  };
  Grid make_grid() const {
    Grid grid;
    grid.ranks = world_size_ == 4 ? 2 : 1;
    grid.replicas = world_size_ / grid.ranks;
    grid.replica = rank_ / grid.ranks;
    for (int replica = 0; replica < grid.replicas; ++replica) {
      std::vector<int> members(static_cast<std::size_t>(grid.ranks));
      std::iota(members.begin(), members.end(), replica * grid.ranks);
      const ProcessGroup made = group_.new_group(members);
      if (made) grid.row = made;
    }
    for (int stage = 0; stage < grid.ranks; ++stage) {
      std::vector<int> members;
      for (int replica = 0; replica < grid.replicas; ++replica) {
        members.push_back(replica * grid.ranks + stage);
      }
      const ProcessGroup made = group_.new_group(members);
      if (made) grid.column = made;
    }
    return grid;
  }

  /// The same on every rank; enough layers for two stages on each of four.
  static torch::nn::Sequential make_net(std::int64_t width = 8) {
    namespace nn = torch::nn;
    torch::manual_seed(7);
    return nn::Sequential(nn::Linear(6, width), nn::Tanh(), nn::Linear(width, width), nn::GELU(),
                          nn::Linear(width, width), nn::Tanh(), nn::Linear(width, width),
                          nn::Tanh(), nn::Linear(width, 5));
  }

  static at::Tensor make_inputs(std::int64_t samples, int number = 0) {
    return at::sin(at::arange(samples * 6, at::kFloat) * 0.7 + number).view({samples, 6});
  }
  static at::Tensor make_targets(std::int64_t samples, int number = 0) {
    return at::cos(at::arange(samples * 5, at::kFloat) * 0.3 + number).view({samples, 5});
  }
  static at::Tensor mean_square(const at::Tensor& outputs, const at::Tensor& targets) {
    return at::mse_loss(outputs, targets);
  }

  /// Adds the whole net's gradient for the same micro-batches, in their order; gives the mean loss.
  template <class Loss>
  static double step_uncut(torch::nn::Sequential& net, const at::Tensor& inputs,
                           const at::Tensor& targets, int micro_batches, Loss&& loss,
                           std::int64_t samples_of_all = 0) {
    const std::int64_t samples = inputs.size(0);
    if (samples_of_all == 0) samples_of_all = samples;
    const auto parts = std::min<std::int64_t>(micro_batches, samples);
    const Tensors of_inputs = inputs.tensor_split(parts);
    const Tensors of_targets = targets.tensor_split(parts);
    double mean = 0;
    for (std::size_t i = 0; i < of_inputs.size(); ++i) {
      const double weight =
          static_cast<double>(of_inputs[i].size(0)) / static_cast<double>(samples_of_all);
      const at::Tensor part = loss(net->forward(of_inputs[i]), of_targets[i]) * weight;
      part.backward();
      mean += part.template item<double>();
    }
    return mean;
  }

  /// Expects the pipeline's gradients to have the bits of the whole net's of the same names.
  static void expect_gradients_of(const torch::nn::Sequential& uncut, const Pipeline& pipeline,
                                  bool exactly = true) {
    const auto expected = uncut->named_parameters();
    for (const auto& named : pipeline.named_parameters()) {
      const at::Tensor& actual = named.value().grad();
      const at::Tensor& wanted = expected[named.key()].grad();
      ASSERT_EQ(actual.defined(), wanted.defined()) << named.key();
      if (!actual.defined()) continue;
      EXPECT_TRUE(exactly ? at::equal(actual, wanted) : at::allclose(actual, wanted, 1e-4, 1e-6))
          << named.key() << actual << wanted;
    }
  }
};

}  // namespace lockstep::testing
