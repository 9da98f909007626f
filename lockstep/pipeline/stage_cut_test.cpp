#include <chrono>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/pipeline/pipeline.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;

nn::Sequential net_to_cut() {
  return nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Dropout(0.5),
                        nn::Linear(8, 2));
}

std::set<std::string> parameter_names(const nn::Sequential& net) {
  const auto keys = net->named_parameters().keys();
  return {keys.begin(), keys.end()};
}

TEST(StageCut, StagesAreTheNet) {
  torch::manual_seed(1);
  nn::Sequential net = net_to_cut();
  net->eval();
  auto stages = cut_into_stages(net, {1, 4});
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0]->size(), 1u);
  EXPECT_EQ(stages[1]->size(), 3u);
  EXPECT_EQ(parameter_names(stages[1]), (std::set<std::string>{"1.weight", "1.bias"}));
  EXPECT_EQ(parameter_names(stages[2]), (std::set<std::string>{"4.weight", "4.bias"}));
  const at::Tensor input = at::arange(12.0).view({3, 4});
  at::Tensor output = input;
  for (auto& stage : stages) output = stage->forward(output);
  EXPECT_TRUE(at::equal(output, net->forward(input)));
  EXPECT_EQ(cut_into_stages(net, {}).size(), 1u);
}

TEST(StageCut, CutsThatCannotBeAreRefused) {
  for (const std::vector<std::int64_t>& cuts :
       std::vector<std::vector<std::int64_t>>{{0}, {5}, {-1}, {3, 3}, {3, 2}}) {
    EXPECT_THROW(cut_into_stages(net_to_cut(), cuts), UsageError);
  }
}

TEST(StageCut, AParameterOfTwoStagesIsRefused) {
  nn::Linear first(4, 4), second(4, 4);
  second->weight = first->weight;
  second->register_parameter("tied", first->weight);
  const nn::Sequential net(first, nn::ReLU(), second);
  EXPECT_THROW(cut_into_stages(net, {1}), UsageError);
  const nn::Linear twice(4, 4);
  EXPECT_THROW(cut_into_stages(nn::Sequential(twice, twice), {1}), UsageError);
  EXPECT_EQ(cut_into_stages(nn::Sequential(twice, nn::ReLU(), twice, nn::Linear(4, 1)), {3}).size(),
            2u);
}

TEST(StageCut, CostsByParameters) {
  const nn::Sequential net = net_to_cut();
  EXPECT_EQ(parameter_costs(net), (std::vector<double>{40, 16, 0, 0, 18}));
  EXPECT_EQ(balance_stages(parameter_costs(net), 2), (std::vector<std::int64_t>{1}));
}

TEST(StageCut, MeasuringFindsTheDearLayerAndChangesNothing) {
  torch::manual_seed(2);
  const nn::Sequential net(nn::Embedding(10, 16), nn::Linear(16, 16), nn::BatchNorm1d(8),
                           nn::Dropout(0.5), nn::Linear(16, 2048), nn::Linear(2048, 1));
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : net->buffers()) before.push_back(buffer.clone());
  const at::Tensor sample = at::zeros({64, 8}, at::kLong);
  torch::manual_seed(3);
  const at::Tensor random = at::rand({4});
  torch::manual_seed(3);
  const auto costs = measured_costs(net, sample);
  EXPECT_TRUE(at::equal(at::rand({4}), random));
  ASSERT_EQ(costs.size(), 6u);
  for (const double cost : costs) EXPECT_GT(cost, 0);
  EXPECT_GT(costs[4], costs[3]);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(net->buffers()[i], before[i]));
  }
  for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_THROW(measured_costs(net, sample, {.repetitions = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep
