#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "tests/ranks/fully_shard/fixture.h"
#include "tests/ranks/on_machines.h"

namespace lockstep::testing {
namespace {

using MakeUnsharded = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

struct ElementwiseOptimizer {
  const char* name;
  bool reshards;  // after forward
  MakeUnsharded make;
};

const ElementwiseOptimizer kElementwise[] = {
    {"SGD", true,
     [](const Tensors& parameters) {
       return std::make_unique<torch::optim::SGD>(
           parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
     }},
    {"AdamW", false,
     [](const Tensors& parameters) {
       return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
     }},
};

TEST_F(FullyShard, HasTheBitsOfDistributedDataParallelAfter100Steps) {
  for (const ElementwiseOptimizer& optimizer : kElementwise) {
    SCOPED_TRACE(optimizer.name);
    FullyShardOptions options = by_block();
    options.reshard_after_forward = optimizer.reshards;
    auto [plain, sharded] = make_pair(options);
    DistributedDataParallel replica(plain, {.process_group = group_});
    const auto ours = optimizer.make(sharded.parameters());
    const auto theirs = optimizer.make(replica.parameters());
    for (int step = 0; step < 100; ++step) {
      ours->zero_grad();
      theirs->zero_grad();
      backward(sharded, step);
      backward(replica, step);
      ours->step();
      theirs->step();
    }
    EXPECT_TRUE(same_values(sharded.full_state_dict(), state_dict(*plain), sums_in_one_order()));
  }
}

TEST_F(FullyShard, HasTheBitsOfDistributedDataParallelOverMachines) {
  if (world_size_ < 3) GTEST_SKIP() << "needs 3 ranks";
  const std::vector<std::string> groupings =
      world_size_ == 3 ? std::vector<std::string>{"001", "010"}
                       : std::vector<std::string>{"0011", "0001", "0012", "0101"};
  for (const std::string& grouping : groupings) {
    SCOPED_TRACE(grouping);
    const OnMachines machines(default_process_group(), grouping);
    group_ = machines.group();
    auto [plain, sharded] = make_pair(by_block());
    DistributedDataParallel replica(plain, {.process_group = group_});
    torch::optim::SGD ours(sharded.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    torch::optim::SGD theirs(replica.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      backward(sharded, step);
      backward(replica, step);
      ours.step();
      theirs.step();
    }
    EXPECT_TRUE(same_values(sharded.full_state_dict(), state_dict(*plain), /*same_bits=*/true));
  }
}

TEST_F(FullyShard, HasTheBitsOfTrueWithANumberToReshardTo) {
  if (world_size_ % 2 != 0) GTEST_SKIP() << "needs a number that divides the ranks";
  for (const bool converts : {false, true}) {
    FullyShardOptions options = by_block();
    if (converts) options.mp_policy.param_dtype = at::kDouble;
    auto expected = fully_shard(ShardNet(), options);
    std::vector<std::unique_ptr<FullySharded<ShardNetImpl>>> models;
    for (const int number : {1, 2}) {
      options.reshard_after_forward = number;
      models.push_back(std::make_unique<FullySharded<ShardNetImpl>>(ShardNet(), options));
      models.back()->load_full_state_dict(expected.full_state_dict());
    }
    const auto train = [&](FullySharded<ShardNetImpl>& model) {
      AdamW optimizer(model.parameters(), {.lr = 0.01});
      for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        if (step == 2) static_cast<void>(model(tokens(9)));  // keeps parts that no backward takes
        const at::Tensor loss = token_loss(model(tokens(step)), targets(step));
        if (step == 3) {  // drops what backward would take
          const torch::NoGradGuard no_grad;
          static_cast<void>(model(tokens(9)));
        }
        loss.backward({}, /*retain_graph=*/step == 4);
        if (step == 4) loss.backward();
        optimizer.step();
      }
    };
    train(expected);
    for (const auto& model : models) {
      train(*model);
      EXPECT_TRUE(same_values(model->full_state_dict(), expected.full_state_dict(), true));
    }
  }
}

TEST_F(FullyShard, GathersFromNeighboursAloneInBackwardWithANumber) {
  if (world_size_ != 4) GTEST_SKIP() << "needs two groups of two ranks";
  // Collectives of all ranks in backward; converted values are copied over every backend.
  const auto calls_in_backward = [&](const ReshardAfterForward& reshard) {
    FullyShardOptions options = by_block();
    options.mp_policy.param_dtype = at::kDouble;
    options.reshard_after_forward = reshard;
    auto model = fully_shard(ShardNet(), options);
    const auto calls = [&] {
      return ProcessGroupAccess::state(model.process_group(), "test").sequence.load();
    };
    std::uint64_t in_backward = 0;
    for (int step = 0; step < 3; ++step) {  // the first gathers nothing ahead
      const at::Tensor loss = token_loss(model(tokens(step)), targets(step));
      const std::uint64_t before = calls();
      loss.backward();
      in_backward = calls() - before;
    }
    return in_backward;
  };
  const std::uint64_t kept = calls_in_backward(false);
  EXPECT_EQ(calls_in_backward(true), kept + 3);  // one for each block
  EXPECT_EQ(calls_in_backward(2), kept);
}

TEST_F(FullyShard, TrainsAsOneProcessOnAllSamples) {
  auto [plain, sharded] = make_pair(by_block());
  SGD ours(sharded.parameters(), {.lr = 0.05});
  Tensors parameters = plain->parameters();
  parameters.pop_back();  // the weight that the head shares
  torch::optim::SGD theirs(parameters, 0.05);
  for (int step = 0; step < 20; ++step) {
    sharded.zero_grad();
    plain->zero_grad();
    backward(sharded, step);
    // Batches are of one size: the mean of means is the mean.
    Tensors inputs;
    Tensors wanted;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back((at::arange(20) * (rank + 3) + step * 7).remainder(11));
      wanted.push_back((inputs.back() * 5 + 1).remainder(11));
    }
    token_loss(plain->forward(at::cat(inputs)), at::cat(wanted)).backward();
    ours.step();
    theirs.step();
  }
  EXPECT_TRUE(same_values(sharded.full_state_dict(), state_dict(*plain), false));
}

TEST_F(FullyShard, GivesEveryRankTheValuesOfRank0) {
  const auto sharded = fully_shard(ShardNet(), by_block());
  Tensors values;
  for (const auto& [name, value] : sharded.full_state_dict()) values.push_back(value);
  EXPECT_TRUE(same_bits_everywhere(values));
}

TEST_F(FullyShard, AddsGradientsOfSeveralBackwardPasses) {
  auto [plain, sharded] = make_pair(by_block());
  DistributedDataParallel replica(plain, {.process_group = group_});
  for (int step = 0; step < 3; ++step) {
    backward(sharded, step);
    backward(replica, step);
  }
  const auto pieces = sharded.named_parameters();
  for (const auto& [name, piece] : pieces) {
    const at::Tensor expected = replica->named_parameters()[name].grad();
    if (!expected.defined()) continue;
    EXPECT_TRUE(
        at::allclose(whole_of(piece.grad(), expected.numel()), expected.view(-1), 1e-4, 1e-6));
  }
}

TEST_F(FullyShard, RunsBackwardTwiceOverOneGraph) {
  auto [plain, sharded] = make_pair(by_block());
  const at::Tensor loss = token_loss(sharded(tokens(0)), targets(0));
  loss.backward({}, /*retain_graph=*/true);
  Tensors once;
  for (const at::Tensor& piece : sharded.parameters()) {
    once.push_back(piece.grad().defined() ? piece.grad().clone() : at::Tensor());
  }
  loss.backward();
  const Tensors pieces = sharded.parameters();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!once[i].defined()) continue;
    EXPECT_TRUE(at::equal(pieces[i].grad(), once[i] * 2)) << i;
  }
}

TEST_F(FullyShard, ExchangesNothingWhileSyncIsOff) {
  auto [plain, sharded] = make_pair(by_block());
  DistributedDataParallel replica(plain, {.process_group = group_});
  sharded.set_requires_gradient_sync(false);
  for (int step = 0; step < 2; ++step) {
    backward(sharded, step);
    const auto no_sync = replica.no_sync();
    backward(replica, step);
  }
  for (const at::Tensor& piece : sharded.parameters()) EXPECT_FALSE(piece.grad().defined());
  sharded.set_requires_gradient_sync(true);
  backward(sharded, 2);
  backward(replica, 2);
  expect_same_gradients(sharded, replica);
}

TEST_F(FullyShard, GivesUpGradientsThatWereNotExchanged) {
  auto [plain, sharded] = make_pair(by_block());
  DistributedDataParallel replica(plain, {.process_group = group_});
  sharded.set_requires_gradient_sync(false);
  backward(sharded, 5);
  sharded.zero_grad();
  sharded.set_requires_gradient_sync(true);
  backward(sharded, 0);
  backward(replica, 0);
  expect_same_gradients(sharded, replica);
}

TEST_F(FullyShard, ALossOfWeight0CountsNothingEvenIfItIsNan) {
  auto [plain, sharded] = make_pair(by_block());
  DistributedDataParallel replica(plain, {.process_group = group_});
  const auto run = [&](auto& model) {
    const auto loss = [&](int step) {
      return token_loss(model.forward(tokens(step)), targets(step));
    };
    const bool has_samples = rank_ == 0;
    model.backward(loss(0) * (has_samples ? 1.0 : NAN), {.weight = has_samples ? 3.0 : 0.0});
  };
  run(sharded);
  run(replica);
  expect_same_gradients(sharded, replica);
  // Nor does it touch what earlier passes left.
  sharded.zero_grad();
  replica.zero_grad();
  sharded.set_requires_gradient_sync(false);
  sharded.backward(token_loss(sharded(tokens(1)), targets(1)), {.weight = 2});
  sharded.set_requires_gradient_sync(true);
  sharded.backward(token_loss(sharded(tokens(2)), targets(2)) * NAN, {.weight = 0});
  {
    const auto no_sync = replica.no_sync();
    replica.backward(token_loss(replica(tokens(1)), targets(1)), {.weight = 2});
  }
  replica.backward(token_loss(replica(tokens(2)), targets(2)) * NAN, {.weight = 0});
  expect_same_gradients(sharded, replica);
}

TEST_F(FullyShard, DividesGradientsByTheFactor) {
  FullyShardOptions options = by_block();
  options.gradient_divide_factor = 2 * world_size_;
  auto [plain, sharded] = make_pair(options);
  DistributedDataParallel replica(plain, {.process_group = group_});
  backward(sharded, 0);
  backward(replica, 0);
  for (const auto& [name, piece] : sharded.named_parameters()) {
    const at::Tensor expected = replica->named_parameters()[name].grad();
    if (!expected.defined()) continue;
    EXPECT_TRUE(
        at::allclose(2 * whole_of(piece.grad(), expected.numel()), expected.view(-1), 1e-4, 1e-6))
        << name;
  }
}

TEST_F(FullyShard, KeepsFrozenParameters) {
  auto [plain, sharded] = make_pair(by_block());
  for (const auto& [name, piece] : sharded.named_parameters()) {
    EXPECT_EQ(piece.requires_grad(), name != "scale") << name;
  }
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  backward(sharded, 0);
  optimizer.step();
  const auto trained = sharded.full_state_dict();
  for (const auto& [name, value] : trained) {
    if (name == "scale") {
      EXPECT_TRUE(at::equal(value, plain->scale));
    } else if (name == "embedding.weight") {
      EXPECT_FALSE(at::equal(value, plain->embedding->weight));
    }
  }
}

TEST_F(FullyShard, LeavesIgnoredParametersAlone) {
  FullyShardOptions options = by_block();
  options.ignored_parameters = {"gain", "blocks.1.norm.bias"};
  auto [plain, sharded] = make_pair(options);
  EXPECT_TRUE(at::equal(sharded.module()->gain, plain->gain));  // It has its values all the time.
  backward(sharded, rank_);
  plain->zero_grad();
  token_loss(plain->forward(tokens(rank_)), targets(rank_)).backward();
  EXPECT_TRUE(at::allclose(sharded.module()->gain.grad(), plain->gain.grad()));
  EXPECT_TRUE(same_values(sharded.full_state_dict(), state_dict(*plain), true));
}

TEST_F(FullyShard, EvaluatesAsTheWholeModule) {
  auto [plain, sharded] = make_pair(by_block());
  sharded.eval();
  plain->eval();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(sharded(tokens(1)), plain(tokens(1))));
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(at::equal(sharded(tokens(2)), plain(tokens(2))));
  }
  // Another function of the module, and training after all that.
  const torch::NoGradGuard no_grad;
  const auto embed = [&](ShardNetImpl& net) { return net.embedding(tokens(3)); };
  EXPECT_TRUE(at::equal(sharded.call(embed), embed(*plain)));
}

TEST_F(FullyShard, SeesTheLastStepInForwardAfterAForwardWithoutBackward) {
  for (const bool reshard : {true, false}) {
    FullyShardOptions options = by_block();
    options.reshard_after_forward = reshard;
    auto [plain, sharded] = make_pair(options);
    backward(sharded, 0);
    static_cast<void>(sharded(tokens(1)));  // leaves the root gathered
    torch::optim::SGD(sharded.parameters(), 0.5).step();
    copy_values(sharded, *plain);
    EXPECT_TRUE(at::equal(sharded(tokens(2)), plain(tokens(2))));
  }
}

TEST_F(FullyShard, SavesAndLoadsTheWholeState) {
  auto [plain, sharded] = make_pair(by_block());
  ShardNet other;
  Tensors values;
  for (auto& tensor : other->parameters()) {
    const torch::NoGradGuard no_grad;
    tensor.copy_(at::arange(tensor.numel(), at::kFloat).view(tensor.sizes()).sin());
  }
  TensorDict saved = state_dict(*other);
  for (auto& [name, value] : saved) value = value.clone();
  for (auto& [name, value] : saved) {
    if (name == "offset") value.copy_(at::arange(13, at::kFloat));
  }
  sharded.load_full_state_dict(saved);
  EXPECT_TRUE(same_values(sharded.full_state_dict(), saved, true));
  const auto of_rank_0 = sharded.full_state_dict({.rank0_only = true});
  EXPECT_EQ(of_rank_0.size(), rank_ == 0 ? saved.size() : 0);

  TensorDict tied_once = saved;
  ASSERT_EQ(tied_once.back().first, "head.weight");
  tied_once.pop_back();
  sharded.load_full_state_dict(state_dict(*ShardNet()));
  sharded.load_full_state_dict(tied_once);
  EXPECT_TRUE(same_values(sharded.full_state_dict(), saved, true));

  TensorDict wrong = saved;
  wrong[0].second = at::zeros({3});
  wrong.erase(wrong.begin() + 1);
  const std::string message = message_of<UsageError>([&] { sharded.load_full_state_dict(wrong); });
  EXPECT_SAYS(message, wrong[0].first);
  EXPECT_SAYS(message, "is missing");
  EXPECT_TRUE(same_values(sharded.full_state_dict(), saved, true));
}

TEST_F(FullyShard, KeepsTheMemoryFormatOfParameters) {
  const auto make = [] {
    auto net = torch::nn::Linear(6, 35);
    const torch::NoGradGuard no_grad;
    net->weight.set_data(net->weight.detach().t().contiguous().t());
    return net;
  };
  auto plain = make();
  auto sharded = fully_shard(make(), {.process_group = group_});
  EXPECT_EQ(sharded.module()->weight.strides(), plain->weight.strides());
  copy_values(sharded, *plain);
  const at::Tensor inputs = at::ones({2, 6});
  EXPECT_TRUE(at::equal(sharded(inputs), plain(inputs)));
}

TEST_F(FullyShard, ClipsByTheNormOfAllRanks) {
  FullyShardOptions options = by_block();
  options.gradient_norm = true;
  auto [plain, sharded] = make_pair(options);
  EXPECT_SAYS(message_of<UsageError>([&] { sharded.gradient_norm(); }), "before a backward pass");
  DistributedDataParallel replica(plain, {.process_group = group_});
  backward(sharded, 0);
  backward(replica, 0);
  const double expected = clip_grad_norm_(replica.parameters(), 0.1);
  EXPECT_NEAR(sharded.gradient_norm(), expected, 1e-5 * expected);
  const double norm = clip_grad_norm_(sharded.parameters(), 0.1, {.process_group = group_});
  EXPECT_NEAR(norm, expected, 1e-5 * expected);
  for (const auto& [name, piece] : sharded.named_parameters()) {
    const at::Tensor gradient = replica->named_parameters()[name].grad();
    if (!gradient.defined()) continue;
    EXPECT_TRUE(
        at::allclose(whole_of(piece.grad(), gradient.numel()), gradient.view(-1), 1e-4, 1e-7))
        << name;
  }
}

/// Two layers, with a wait before the second use of each: in forward, and in backward.
struct SlowReaderImpl : torch::nn::Module {
  SlowReaderImpl() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& inputs) {
    const at::Tensor once = layer(inputs);
    once.register_hook([this](const at::Tensor&) { in_backward(); });
    in_forward();
    return layer(once);
  }
  torch::nn::Linear layer{6, 6};
  std::function<void()> in_forward = [] {};
  std::function<void()> in_backward = [] {};
};
TORCH_MODULE(SlowReader);

// Rank 0 is through long before the last rank, and changes its piece at once.
TEST_F(FullyShard, NoRankChangesItsPieceWhileAnotherComputesWithIt) {
  NEEDS_RANKS(2);
  const auto store = group_.c10d_store();
  const bool is_slow = rank_ == world_size_ - 1;
  int turn = 0;
  const auto key = [&] { return "changed its piece " + std::to_string(turn); };
  // Ends early only if rank 0 did not wait.
  const auto wait_for_change = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!store->check({key()}) && std::chrono::steady_clock::now() < end) {
    }
  };
  for (const bool syncs : {true, false}) {
    for (const bool in_forward : {true, false}) {
      SlowReader plain;
      SlowReader net;
      auto sharded = fully_shard(net, {.process_group = group_});
      copy_values(sharded, *plain);
      sharded.set_requires_gradient_sync(syncs);
      ++turn;
      if (is_slow) (in_forward ? net->in_forward : net->in_backward) = wait_for_change;
      const auto change_piece = [&] {
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& piece : sharded.parameters()) piece.add_(1);
        if (rank_ == 0) store->set(key(), "yes");
      };
      at::Tensor inputs = at::ones({2, 6}).requires_grad_();
      at::Tensor others = at::ones({2, 6}).requires_grad_();
      const at::Tensor outputs = sharded(inputs);
      if (in_forward) change_piece();
      EXPECT_TRUE(at::equal(outputs, plain(others)));
      if (in_forward) continue;
      outputs.sum().backward();
      change_piece();
      plain(others).sum().backward();
      EXPECT_TRUE(at::equal(inputs.grad(), others.grad()));
      group_.barrier();
    }
  }
}

// The example of docs/fully-shard.md: the test `guide` finds it here.
TEST_F(FullyShard, RunsTheExampleOfTheGuide) {
  using Transformer = ShardNet;
  using BlockImpl = ShardBlockImpl;
  const ProcessGroup& group = group_;
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int step = 0; step < 10; ++step) batches.emplace_back(tokens(0), targets(0));

  auto model = lockstep::fully_shard(
      Transformer(),
      {.process_group = group, .auto_wrap_policy = lockstep::module_wrap_policy<BlockImpl>()});
  lockstep::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  for (const auto& [inputs, targets] : batches) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model(inputs), targets).backward();
    lockstep::clip_grad_norm_(model.parameters(), 1.0, {.process_group = model.process_group()});
    optimizer.step();
  }
  const lockstep::TensorDict weights = model.full_state_dict();  // every rank calls it

  ShardNet plain;
  load_state_dict(*plain, weights);
  EXPECT_TRUE(at::equal(plain(tokens(0)), model(tokens(0))));
}

// Another one there.
TEST_F(FullyShard, ReshardsAsInTheGuide) {
  if (world_size_ % 2 != 0) GTEST_SKIP() << "pairs of ranks";
  using Transformer = ShardNet;

  auto model = lockstep::fully_shard(Transformer(), {.reshard_after_forward = 2});

  token_loss(model(tokens(0)), targets(0)).backward();
  EXPECT_TRUE(std::ranges::any_of(model.parameters(),
                                  [](const at::Tensor& piece) { return piece.grad().defined(); }));
}

// As those of DistributedDataParallel do.
TEST_F(FullyShard, BuffersOfRankZeroReachAllInForwardWithoutInitSyncToo) {
  auto sharded = fully_shard(ShardNet(), {.process_group = group_, .init_sync = false});
  const at::Tensor offset = sharded.module()->named_buffers()["offset"];
  const at::Tensor given = offset.clone();
  sharded(tokens(0));
  EXPECT_TRUE(same_bits_everywhere({offset}));
  EXPECT_TRUE(rank_ > 0 || at::equal(offset, given));
}

}  // namespace
}  // namespace lockstep::testing
