// fully_shard with replicas (HSDP): the average of DistributedDataParallel on all ranks, each
// element counted once.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/fully_shard/internal/shard_mesh.h"
#include "lockstep/optim/clip_grad.h"
#include "tests/ranks/fully_shard/accelerator_fixture.h"
#include "tests/ranks/fully_shard/fixture.h"
#include "tests/ranks/on_machines.h"

namespace lockstep::testing {
namespace {

class HybridShardTest : public FullyShard {
 protected:
  /// The ranks of this one's row, or column, of the grid {{0, 1}, {2, 3}}.
  ProcessGroup line(bool is_row) const {
    ProcessGroup own;
    for (const int i : {0, 1}) {
      const std::vector<int> ranks =
          is_row ? std::vector<int>{2 * i, 2 * i + 1} : std::vector<int>{i, i + 2};
      if (const ProcessGroup made = group_.new_group(ranks)) own = made;
    }
    return own;
  }

  FullyShardOptions on_grid(bool shards_rows) const {
    FullyShardOptions options = by_block();
    options.process_group = line(shards_rows);
    options.replicate_group = line(!shards_rows);
    return options;
  }

  /// All ranks' pieces of a replica.
  static at::Tensor gathered(const FullySharded<ShardNetImpl>& model, const at::Tensor& piece) {
    const ProcessGroup& group = model.process_group();
    const at::Tensor sizes = at::zeros({group.world_size()}, at::kLong);
    sizes[group.rank()] = piece.numel();
    group.all_reduce(sizes);
    Tensors all;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      at::Tensor part = at::zeros({sizes[rank].item<std::int64_t>()}, piece.options());
      if (rank == group.rank()) part.copy_(piece);
      group.broadcast(part, rank);
      all.push_back(part);
    }
    return at::cat(all);
  }

  template <class Replica>
  static void expect_gradients_of(Replica& replica, const FullySharded<ShardNetImpl>& sharded) {
    for (const auto& [name, piece] : sharded.named_parameters()) {
      const at::Tensor expected = replica->named_parameters()[name].grad();
      ASSERT_EQ(piece.grad().defined(), expected.defined()) << name;
      if (!expected.defined()) continue;
      EXPECT_TRUE(at::allclose(gathered(sharded, piece.grad()), expected.reshape(-1), 1e-4, 1e-7))
          << name;
    }
  }
};

#define NEEDS_GRID() \
  if (world_size_ != 4) GTEST_SKIP() << "needs 4 ranks"

TEST_F(HybridShardTest, TrainsAsDistributedDataParallelOnAllRanks) {
  NEEDS_GRID();
  for (const bool shards_rows : {true, false}) {
    auto [plain, sharded] = make_pair(on_grid(shards_rows));
    DistributedDataParallel replica(plain, {.process_group = group_});
    torch::optim::AdamW ours(sharded.parameters(), torch::optim::AdamWOptions(0.003));
    torch::optim::AdamW theirs(replica.parameters(), torch::optim::AdamWOptions(0.003));
    for (int step = 0; step < 20; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      backward(sharded, step);
      backward(replica, step);
      if (step == 0) expect_gradients_of(replica, sharded);
      ours.step();
      theirs.step();
    }
    const TensorDict whole = sharded.full_state_dict();
    EXPECT_TRUE(same_values(whole, state_dict(*plain), /*same_bits=*/false));
    Tensors values;
    for (const auto& [name, value] : whole) values.push_back(value);
    EXPECT_TRUE(same_bits_everywhere(values));
  }
}

TEST_F(HybridShardTest, HoldsAShardOfTheReplicaAlone) {
  NEEDS_GRID();
  auto [plain, sharded] = make_pair(on_grid(true));
  for (const auto& [name, piece] : sharded.named_parameters()) {
    EXPECT_EQ(gathered(sharded, piece.detach()).numel(), plain->named_parameters()[name].numel());
  }
  const TensorDict of_first = sharded.full_state_dict({.rank0_only = true});
  EXPECT_EQ(of_first.empty(), rank_ != 0);
}

TEST_F(HybridShardTest, HasTheBitsOfReplicasWhereEachMachineHasOne) {
  NEEDS_GRID();
  const OnMachines machines(group_, "0011");
  group_ = machines.group();
  FullyShardOptions options = by_block();
  options.hybrid_shard = HybridShard::kShardInMachines;
  auto [plain, sharded] = make_pair(options);
  EXPECT_TRUE(sharded.process_group().shares_memory());
  DistributedDataParallel replica(plain, {.process_group = group_});
  torch::optim::SGD ours(sharded.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD theirs(replica.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 100; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    backward(sharded, step);
    backward(replica, step);
    ours.step();
    theirs.step();
  }
  EXPECT_TRUE(same_values(sharded.full_state_dict(), state_dict(*plain), /*same_bits=*/true));
}

TEST_F(HybridShardTest, ShardsOverMachinesWhereTheRanksOfOneHoldTheSame) {
  NEEDS_GRID();
  const OnMachines machines(group_, "0011");
  group_ = machines.group();
  FullyShardOptions options = by_block();
  options.hybrid_shard = HybridShard::kReplicateInMachines;
  auto [plain, sharded] = make_pair(options);
  EXPECT_FALSE(sharded.process_group().shares_memory());
  EXPECT_EQ(sharded.process_group().world_size(), 2);
  DistributedDataParallel replica(plain, {.process_group = group_});
  backward(sharded, 3);
  backward(replica, 3);
  expect_gradients_of(replica, sharded);
}

TEST_F(HybridShardTest, DividesByMachineOverGloo) {
  NEEDS_GRID();
  for (const std::string& grouping : std::vector<std::string>{"0011", "0101"}) {
    const OnMachines machines(default_process_group(), grouping, "gloo");
    group_ = machines.group();
    for (const auto hybrid : {HybridShard::kShardInMachines, HybridShard::kReplicateInMachines}) {
      FullyShardOptions options = by_block();
      options.hybrid_shard = hybrid;
      auto [plain, sharded] = make_pair(options);
      const ProcessGroup& inside = hybrid == HybridShard::kShardInMachines
                                       ? sharded.process_group()
                                       : sharded.replicate_group();
      ASSERT_EQ(inside.world_size(), 2);
      EXPECT_EQ(inside.backend_name(), "gloo");
      const at::Tensor machine =
          at::full({1}, static_cast<int>(grouping[static_cast<std::size_t>(rank_)]));
      const at::Tensor most = machine.clone();
      inside.all_reduce(most, {.op = ReduceOp::kMax});
      EXPECT_TRUE(at::equal(most, machine));
      DistributedDataParallel replica(plain, {.process_group = group_});
      backward(sharded, 3);
      backward(replica, 3);
      expect_gradients_of(replica, sharded);
    }
  }
}

TEST_F(HybridShardTest, DividesNothingWhereThereIsOneRankOnEachMachine) {
  const OnMachines machines(default_process_group(), "0123", "gloo");
  group_ = machines.group();
  for (const auto hybrid : {HybridShard::kShardInMachines, HybridShard::kReplicateInMachines}) {
    FullyShardOptions options = by_block();
    options.hybrid_shard = hybrid;
    auto [plain, sharded] = make_pair(options);
    const bool shards = hybrid == HybridShard::kReplicateInMachines;
    EXPECT_EQ(sharded.process_group().world_size(), shards ? world_size_ : 1);
    DistributedDataParallel replica(plain, {.process_group = group_});
    backward(sharded, 3);
    backward(replica, 3);
    expect_gradients_of(replica, sharded);
  }
}

TEST_F(HybridShardTest, DividesNothingWhereThereIsOneMachine) {
  if (group_.backend_name() == "hierarchical") GTEST_SKIP() << "needs ranks on one machine";
  for (const auto hybrid : {HybridShard::kShardInMachines, HybridShard::kReplicateInMachines}) {
    FullyShardOptions options = by_block();
    options.hybrid_shard = hybrid;
    auto [plain, sharded] = make_pair(options);
    const bool shards = hybrid == HybridShard::kShardInMachines;
    EXPECT_EQ(sharded.process_group().world_size(), shards ? world_size_ : 1);
    DistributedDataParallel replica(plain, {.process_group = group_});
    backward(sharded, 3);
    backward(replica, 3);
    expect_gradients_of(replica, sharded);
  }
}

TEST_F(HybridShardTest, CountsEachElementOnceInNorms) {
  NEEDS_GRID();
  FullyShardOptions options = on_grid(true);
  options.gradient_norm = true;
  auto [plain, sharded] = make_pair(options);
  DistributedDataParallel replica(plain, {.process_group = group_});
  backward(sharded, 0);
  backward(replica, 0);
  const double expected = clip_grad_norm_(replica.parameters(), 0.1);
  EXPECT_NEAR(sharded.gradient_norm(), expected, 1e-5 * expected);
  const double norm =
      clip_grad_norm_(sharded.parameters(), 0.1, {.process_group = sharded.process_group()});
  EXPECT_NEAR(norm, expected, 1e-5 * expected);
  expect_gradients_of(replica, sharded);
}

TEST_F(HybridShardTest, AveragesByTheWeightsOfAllRanks) {
  NEEDS_GRID();
  auto [plain, sharded] = make_pair(on_grid(true));
  DistributedDataParallel replica(plain, {.process_group = group_});
  const auto backward_with_weight = [&](auto& model) {
    model.backward(token_loss(model.forward(tokens(0)), targets(0)), {.weight = 1.0 + rank_});
  };
  backward_with_weight(sharded);
  backward_with_weight(replica);
  expect_gradients_of(replica, sharded);
}

TEST_F(HybridShardTest, DividesByTheFactorOrByAllRanks) {
  NEEDS_GRID();
  FullyShardOptions options = on_grid(false);
  options.gradient_divide_factor = 4;
  auto [plain, sharded] = make_pair(options);
  DistributedDataParallel replica(plain, {.process_group = group_});
  sharded.set_requires_gradient_sync(false);
  backward(sharded, 1);
  sharded.set_requires_gradient_sync(true);
  backward(sharded, 2);
  {
    const auto no_sync = replica.no_sync();
    backward(replica, 1);
  }
  backward(replica, 2);
  expect_gradients_of(replica, sharded);
}

/// Uses its layer in some replicas alone.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& values, bool uses_second) {
    return uses_second ? second(first(values)) : first(values);
  }
  torch::nn::Linear first{5, 5};
  torch::nn::Linear second{5, 5};
};
TORCH_MODULE(Sometimes);

TEST_F(HybridShardTest, AParameterThatAnotherReplicaUsesHasAGradient) {
  NEEDS_GRID();
  Sometimes plain;
  auto sharded = fully_shard(Sometimes(), on_grid(true));
  copy_values(sharded, *plain);
  DistributedDataParallel replica(plain, {.process_group = group_});
  const at::Tensor inputs = at::arange(10, at::kFloat).view({2, 5}) + rank_;
  sharded(inputs, rank_ >= 2).sum().backward();
  replica(inputs, rank_ >= 2).sum().backward();
  for (const auto& [name, piece] : sharded.named_parameters()) {
    const at::Tensor expected = replica->named_parameters()[name].grad();
    ASSERT_TRUE(piece.grad().defined()) << name;
    const at::Tensor sum = piece.grad().sum();
    sharded.process_group().all_reduce(sum);
    EXPECT_TRUE(at::allclose(sum, expected.sum(), 1e-4, 1e-5)) << name;
  }
}

TEST_F(HybridShardTest, RefusesGroupsThatAreNoGrid) {
  NEEDS_GRID();
  FullyShardOptions options = by_block();
  options.process_group = line(true);
  options.replicate_group = options.process_group;
  EXPECT_SAYS(message_of<UsageError>([&] { fully_shard(ShardNet(), options); }),
              "do not form a grid");
  options.hybrid_shard = HybridShard::kShardInMachines;
  EXPECT_SAYS(message_of<UsageError>([&] { fully_shard(ShardNet(), options); }),
              "hybrid_shard with replicate_group");
}

TEST_F(HybridShardTest, AllRanksChooseTheSameKind) {
  NEEDS_RANKS(2);
  FullyShardOptions options = by_block();
  options.hybrid_shard = rank_ == 0 ? HybridShard::kNone : HybridShard::kShardInMachines;
  EXPECT_SAYS(message_of<UsageError>([&] { fully_shard(ShardNet(), options); }), "hybrid_shard");
}

TEST_F(HybridShardTest, ReplicasClipByTheNormOfTheFirst) {
  NEEDS_RANKS(2);
  const at::Tensor parameter = at::zeros({3}, at::requires_grad());
  parameter.mutable_grad() = at::full({3}, rank_ + 1.0);
  const ClipGradOptions options{.replicate_group = group_};
  const double expected = std::sqrt(3.0);
  EXPECT_NEAR(get_total_norm({parameter}, options), expected, 1e-6);
  EXPECT_NEAR(clip_grad_norm_({parameter}, expected / 2, options), expected, 1e-6);
  EXPECT_TRUE(at::allclose(parameter.grad(), at::full({3}, (rank_ + 1.0) / 2)));
}

TEST_F(HybridShardTest, RefusesMachinesOfDifferentSizes) {
  if (world_size_ != 3) GTEST_SKIP() << "needs 3 ranks";
  const OnMachines machines(group_, "001");
  group_ = machines.group();
  FullyShardOptions options = by_block();
  options.hybrid_shard = HybridShard::kShardInMachines;
  EXPECT_SAYS(message_of<UsageError>([&] { fully_shard(ShardNet(), options); }),
              "they have 2 and 1");
}

TEST_F(HybridShardTest, AModelThatDiffersInAnotherReplicaIsAnErrorOnAllRanks) {
  NEEDS_GRID();
  const FullyShardOptions options = on_grid(true);
  std::string message;
  try {
    fully_shard(ShardNet(rank_ < 2 ? 13 : 14), options);
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_SAYS(message, "fully_shard");
}

// The example of docs/fully-shard.md: the test `guide` finds it here.
TEST_F(HybridShardTest, RunsTheExampleOfTheGuide) {
  if (group_.backend_name() == "hierarchical" && world_size_ != 4)
    GTEST_SKIP() << "uneven machines";
  using Transformer = ShardNet;

  auto model = lockstep::fully_shard(Transformer(),
                                     {.hybrid_shard = lockstep::HybridShard::kShardInMachines});

  token_loss(model(tokens(0)), targets(0)).backward();
  EXPECT_TRUE(std::ranges::any_of(model.parameters(),
                                  [](const at::Tensor& piece) { return piece.grad().defined(); }));
}

class HybridShardAccelerator : public FullyShardAccelerator {
 protected:
  static AcceleratorOptions hybrid(AcceleratorOptions options, HybridShard how) {
    options = with_strategy(std::move(options), true);
    options.fully_shard.hybrid_shard = how;
    return options;
  }
};

TEST_F(HybridShardAccelerator, HasTheResultsOfReplicas) {
  if (group_.backend_name() == "hierarchical" && world_size_ != 4) GTEST_SKIP() << "uneven";
  for (const auto how : {HybridShard::kShardInMachines, HybridShard::kReplicateInMachines}) {
    for (const UnitsStepPlan& plan :
         {UnitsStepPlan{}, UnitsStepPlan{.clip_norm = 1e9, .bad_step = 3}}) {
      Accelerator shards(hybrid({.non_finite = NonFinite::kSkip}, how));
      UnitsTraining training(shards, units_adamw(), plan);
      Accelerator other(with_strategy({.non_finite = NonFinite::kSkip}, false));
      UnitsTraining replicas(other, units_adamw(), plan);
      training.train(2);
      replicas.train(2);
      const TensorDict weights = shards.get_state_dict(*training.net);
      EXPECT_EQ(weights.empty(), rank_ != 0);
      const TensorDict expected = state_dict(*replicas.net);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(at::allclose(weights[i].second, expected[i].second, 1e-3, 1e-5))
            << weights[i].first;
      }
      EXPECT_EQ(training.accelerator.steps(), replicas.accelerator.steps());
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
