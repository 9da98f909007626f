// fully_shard over one dimension of a grid of 2 x 2 ranks, another parallelism over the other.
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include "lockstep/nn/tensor_parallel.h"
#include "lockstep/pipeline/pipeline.h"
#include "tests/ranks/fully_shard/fixture.h"

namespace lockstep::testing {
namespace {

constexpr double kLearningRate = 0.1;
constexpr int kSteps = 4;

class FullyShardGrid : public FullyShardTest {
 protected:
  // All ranks draw the same.
  void SetUp() override { torch::manual_seed(7); }

  /// The ranks of this one's row, or column, of the grid {{0, 1}, {2, 3}}.
  ProcessGroup line(bool is_row) const {
    ProcessGroup own;
    for (const int i : {0, 1}) {
      const std::vector<int> ranks =
          is_row ? std::vector<int>{2 * i, 2 * i + 1} : std::vector<int>{i, i + 2};
      const ProcessGroup group = group_.new_group(ranks);
      if (group) own = group;
    }
    return own;
  }

  static at::Tensor inputs(int step, int part) {
    return (at::arange(24, at::kDouble).view({4, 6}) * (step + 1) + part * 5).sin();
  }
  static at::Tensor targets(int step, int part) { return inputs(step, part).square(); }

  /// Steps of one process on the batches of both parts.
  static void train_plain(torch::nn::Sequential& net) {
    torch::optim::SGD optimizer(net->parameters(), kLearningRate);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      at::mse_loss(net->forward(at::cat({inputs(step, 0), inputs(step, 1)})),
                   at::cat({targets(step, 0), targets(step, 1)}))
          .backward();
      optimizer.step();
    }
  }

  static void expect_near(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(actual, expected, 1e-9, 1e-11)) << (actual - expected).abs().max();
  }
};

struct TensorParallelBlockImpl : torch::nn::Module {
  TensorParallelBlockImpl(const torch::nn::Linear& first, const torch::nn::Linear& second,
                          const ProcessGroup& group)
      : wide(first, ColumnParallelLinearOptions{.process_group = group}),
        narrow(second, RowParallelLinearOptions{.process_group = group}) {
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  at::Tensor forward(const at::Tensor& values) { return narrow(at::tanh(wide(values))); }
  ColumnParallelLinear wide;
  RowParallelLinear narrow;
};
TORCH_MODULE(TensorParallelBlock);

TEST_F(FullyShardGrid, OverReplicasOfTensorParallelLayers) {
  if (world_size_ != 4) GTEST_SKIP() << "needs 4 ranks";
  const ProcessGroup layers = line(/*is_row=*/true);
  const ProcessGroup replicas = line(/*is_row=*/false);
  const torch::nn::Linear first(6, 10);
  const torch::nn::Linear second(10, 6);
  torch::nn::Sequential plain(first, torch::nn::Tanh(), second);
  plain->to(at::kDouble);
  auto sharded = fully_shard(
      TensorParallelBlock(first, second, layers),
      {.process_group = replicas, .auto_wrap_policy = [](const auto&, const auto& module) {
         return module.children().empty();
       }});
  torch::optim::SGD optimizer(sharded.parameters(), kLearningRate);
  const int part = replicas.rank();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::mse_loss(sharded(inputs(step, part)), targets(step, part)).backward();
    optimizer.step();
  }
  train_plain(plain);
  const std::int64_t begin = layers.rank() * 5;
  const TensorDict found = sharded.full_state_dict();
  ASSERT_EQ(found.size(), 4U);
  expect_near(found[0].second, first->weight.narrow(0, begin, 5));
  expect_near(found[1].second, first->bias.narrow(0, begin, 5));
  expect_near(found[2].second, second->weight.narrow(1, begin, 5));
  expect_near(found[3].second, second->bias);
}

/// A stage of a pipeline: the parameters are those of the FullySharded.
struct ShardedStageImpl : torch::nn::Module {
  explicit ShardedStageImpl(FullySharded<torch::nn::SequentialImpl>& of) : sharded(of) {}
  at::Tensor forward(const at::Tensor& values) { return sharded(values); }
  FullySharded<torch::nn::SequentialImpl>& sharded;
};
TORCH_MODULE(ShardedStage);

TEST_F(FullyShardGrid, OverReplicasOfAStageOfAPipeline) {
  if (world_size_ != 4) GTEST_SKIP() << "needs 4 ranks";
  const ProcessGroup replicas = line(/*is_row=*/true);
  const ProcessGroup stages = line(/*is_row=*/false);
  torch::nn::Sequential plain(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 7),
                              torch::nn::Linear(7, 8), torch::nn::Tanh(), torch::nn::Linear(8, 6));
  plain->to(at::kDouble);
  const std::vector<torch::nn::Sequential> cut = cut_into_stages(plain, {3});
  const torch::nn::Sequential own = cut[static_cast<std::size_t>(stages.rank())];
  TensorDict before;
  for (const auto& [name, tensor] : state_dict(*own)) before.emplace_back(name, tensor.clone());
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(own->clone());
  FullySharded sharded(clone, {.process_group = replicas,
                               .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  Pipeline pipeline(
      std::vector<torch::nn::Sequential>{torch::nn::Sequential(ShardedStage(sharded))},
      {.process_group = stages, .micro_batches = 2});
  torch::optim::SGD optimizer(sharded.parameters(), kLearningRate);
  const int part = replicas.rank();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    pipeline.step(inputs(step, part), targets(step, part),
                  [](const at::Tensor& outputs, const at::Tensor& wanted) {
                    return at::mse_loss(outputs, wanted);
                  });
    optimizer.step();
  }
  train_plain(plain);
  const TensorDict found = sharded.full_state_dict();
  const TensorDict expected = state_dict(*own);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_near(found[i].second, expected[i].second);
    EXPECT_FALSE(at::allclose(found[i].second, before[i].second)) << "not trained";
  }
}

}  // namespace
}  // namespace lockstep::testing
