// In which dtypes a sharded model computes, and how much memory it takes.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "tests/ranks/folder_of_ranks.h"
#include "tests/ranks/fully_shard/fixture.h"

namespace lockstep::testing {
namespace {

class FullyShardMemory : public FullyShardTest {};

/// Notes the dtypes that its layer sees.
struct DtypesImpl : torch::nn::Module {
  DtypesImpl() : layer(7, 3) { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& inputs) {
    seen = {inputs.scalar_type(), layer->weight.scalar_type()};
    return layer(inputs);
  }
  torch::nn::Linear layer;
  std::vector<at::ScalarType> seen;
};
TORCH_MODULE(Dtypes);

TEST_F(FullyShardMemory, ComputesInTheDtypeOfThePolicy) {
  Dtypes plain;
  auto sharded = fully_shard(
      Dtypes(), {.process_group = group_,
                 .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
  copy_values(sharded, *plain);
  const at::Tensor inputs = at::arange(14, at::kFloat).view({2, 7}) * (rank_ + 1) / 10;
  const at::Tensor outputs = sharded(inputs);
  EXPECT_EQ(outputs.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sharded.module()->seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
  outputs.sum().backward();

  // By hand: this rank's gradient in bfloat16, averaged in float32.
  plain->to(at::kBFloat16);
  plain(inputs.to(at::kBFloat16)).sum().backward();
  for (const auto& [name, piece] : sharded.named_parameters()) {
    at::Tensor expected = plain->named_parameters()[name].grad().to(at::kFloat).contiguous();
    group_.all_reduce(expected);
    EXPECT_EQ(piece.scalar_type(), at::kFloat);
    EXPECT_EQ(piece.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(whole_of(piece.grad(), expected.numel()),
                             expected.view(-1) / world_size_, 1e-6, 1e-6))
        << name;
  }
}

/// Counts the bytes that LibTorch's allocator has given out on this thread while it lives.
class CountMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device) override {
    live += bytes;
    most = std::max(most, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t live = 0;
  std::int64_t most = 0;
};

TEST_F(FullyShardMemory, HoldsItsShardsBetweenStepsAndAFewUnitsInThem) {
  constexpr std::int64_t kWidth = 128;
  constexpr int kDepth = 12;
  const auto memory = std::make_shared<CountMemory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  const std::int64_t before = memory->live;

  auto sharded = fully_shard(ShardNet(kWidth, kDepth), by_block());
  std::int64_t all_bytes = 0;
  std::int64_t unit_bytes = 0;
  for (const auto& parameter : sharded.module()->named_parameters()) {
    const std::int64_t bytes = parameter.value().numel() * 4;
    all_bytes += bytes;
    if (parameter.key().starts_with("blocks.0.")) unit_bytes += bytes;
  }
  // Where memory is shared the ranks' pieces are in it, and not counted.
  const std::int64_t own = world_size_ == 1 ? all_bytes : 0;
  const std::int64_t gradients = all_bytes / world_size_;
  // Padding, buffers, activations of 20 tokens.
  const std::int64_t slack = unit_bytes / 2;
  const auto gathered_bytes = [&] {
    std::int64_t bytes = 0;
    for (const auto& parameter : sharded.module()->named_parameters()) {
      bytes += static_cast<std::int64_t>(parameter.value().storage().nbytes());
    }
    return bytes;
  };
  EXPECT_EQ(gathered_bytes(), 0);
  if (world_size_ > 1 && !group_.shares_memory()) {
    // Gloo copies, and frees its copies on threads of its own, which are not counted here.
    token_loss(sharded(tokens(0)), targets(0)).backward();
    EXPECT_EQ(gathered_bytes(), 0);
    return;
  }
  EXPECT_LE(memory->live - before, own + slack);

  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      memory->most = memory->live;
      static_cast<void>(sharded(tokens(step)));
      EXPECT_LE(memory->most - before, own + slack);
    }
    memory->most = memory->live;
    const at::Tensor loss = token_loss(sharded(tokens(step)), targets(step));
    const std::int64_t saved = 40 * 20 * kWidth * kDepth;  // by autograd
    EXPECT_LE(memory->most - before, own + saved + slack);
    memory->most = memory->live;
    loss.backward();
    // Gradients are sharded; a unit's lie beside the copy of what is exchanged at a time.
    EXPECT_LE(memory->most - before, own + gradients + 2 * unit_bytes + saved + slack);
  }
  EXPECT_LE(memory->live - before, own + gradients + slack);
  EXPECT_EQ(gathered_bytes(), 0);
}

// Of a unit's gradients no copy is made, but of a few MB at a time.
TEST_F(FullyShardMemory, ReducesALargeUnitInParts) {
  const auto make = [] { return torch::nn::Linear(4093, 1021); };
  auto sharded = fully_shard(make(), {.process_group = group_});
  auto plain = make();
  copy_values(sharded, *plain);
  const at::Tensor inputs = at::randn({2, 4093});
  const std::int64_t unit_bytes = plain->weight.numel() * 4;

  for (int step = 1; step <= 2; ++step) {
    const auto memory = std::make_shared<CountMemory>();
    const at::Tensor loss = sharded(inputs).square().sum();
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
      loss.backward();
    }
    plain(inputs).square().sum().backward();
    if (group_.shares_memory()) {
      EXPECT_LE(memory->most, unit_bytes + unit_bytes / world_size_ + unit_bytes / 3);
    }
  }
  for (const auto& [name, piece] : sharded.named_parameters()) {
    const at::Tensor expected = plain->named_parameters()[name].grad();
    // Where ranks share no memory each divides its gradients, as in DistributedDataParallel.
    if (!group_.shares_memory()) expected.mul_(1.0 / world_size_);
    group_.all_reduce(expected, {.op = group_.shares_memory() ? ReduceOp::kAvg : ReduceOp::kSum});
    const at::Tensor actual = whole_of(piece.grad(), expected.numel());
    EXPECT_TRUE(sums_in_one_order() ? at::equal(actual, expected.view(-1))
                                    : at::allclose(actual, expected.view(-1), 1e-5, 1e-5))
        << name;
  }
}

// Without a copy: what a rank updates is what all compute with.
TEST_F(FullyShardMemory, ComputesWithThePiecesOfAllRanksWhereTheyLie) {
  if (world_size_ > 1 && !group_.shares_memory()) GTEST_SKIP() << "ranks share no memory";
  auto sharded = fully_shard(ShardNet(), by_block());
  std::size_t pieces = 0;
  sharded.call([&](ShardNetImpl& net) {
    const auto parameters = net.named_parameters();
    for (const auto& [name, piece] : sharded.named_parameters()) {
      if (piece.numel() == 0) continue;
      const at::Tensor values = parameters[name] + 0;  // gathers the unit
      const auto* const begin = static_cast<const std::byte*>(parameters[name].storage().data());
      const auto* const at = static_cast<const std::byte*>(piece.const_data_ptr());
      EXPECT_GE(at, begin) << name;
      EXPECT_LT(at, begin + parameters[name].storage().nbytes()) << name;
      ++pieces;
    }
  });
  if (world_size_ == 1) {
    EXPECT_EQ(pieces, sharded.parameters().size() - 1);
  }
}

/// Layers of which each is a unit, with a visit before each in forward and backward.
struct VisitedImpl : torch::nn::Module {
  explicit VisitedImpl(int depth) {
    for (int i = 0; i < depth; ++i) {
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(8, 8)));
    }
  }
  at::Tensor forward(at::Tensor values) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      values = layers[i](values);
      visit(i);
      values.register_hook([this, i](const at::Tensor&) { visit(i); });
    }
    return values;
  }
  /// Layers that have memory for their parameters.
  std::size_t gathered() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        layers, [](const auto& layer) { return layer->weight.storage().nbytes() > 0; }));
  }
  std::vector<torch::nn::Linear> layers;
  std::function<void(std::size_t)> visit = [](std::size_t) {};
};
TORCH_MODULE(Visited);

TEST_F(FullyShardMemory, GathersOneUnitAheadWhereRanksShareNoMemory) {
  constexpr std::size_t kDepth = 5;
  Visited net(kDepth);
  auto sharded = fully_shard(
      net,
      {.process_group = group_, .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
  const bool is_ahead = world_size_ > 1 && !group_.shares_memory();
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    const bool knows_order = is_ahead && step > 0;
    net->visit = [&](std::size_t layer) {
      EXPECT_EQ(net->gathered(), knows_order && layer + 1 < kDepth ? 2 : 1) << layer;
    };
    const at::Tensor outputs = sharded(at::ones({2, 8}));
    EXPECT_EQ(net->gathered(), 0);
    // Before a layer's backward the one behind it is gathered, and the layer itself may be.
    net->visit = [&](std::size_t layer) {
      const std::size_t behind = layer + 1 < kDepth ? 1 : 0;
      EXPECT_EQ(net->gathered(), behind + (knows_order && behind > 0 ? 1 : 0)) << layer;
    };
    outputs.sum().backward();
    EXPECT_EQ(net->gathered(), 0);
  }
  // In another order: what was ahead is given up, and the results are those of the layers.
  net->visit = [&](std::size_t) { EXPECT_LE(net->gathered(), is_ahead ? 2 : 1); };
  const at::NoGradGuard no_grad;
  const auto backwards = [](VisitedImpl& module) {
    at::Tensor values = at::ones({2, 8});
    for (std::size_t i = kDepth; i-- > 0;) {
      values = module.layers[i](values);
      module.visit(i);
    }
    return values;
  };
  const at::Tensor found = sharded.call(backwards);
  Visited plain(kDepth);
  load_state_dict(*plain, sharded.full_state_dict());
  EXPECT_TRUE(at::equal(found, backwards(*plain)));
  EXPECT_EQ(net->gathered(), 0);
}

// Streamed: a rank holds a unit beside its shards, whichever way a snapshot is written or read.
TEST_F(FullyShardMemory, SavesAndLoadsUnitByUnit) {
  // Gloo copies, and frees its copies on threads of its own, which are not counted here.
  const bool is_counted = world_size_ == 1 || group_.shares_memory();
  constexpr std::int64_t kWidth = 128;
  const FolderOfRanks folder(group_, "fully-shard-memory-");
  for (const bool sharded_saves : {false, true}) {
    SCOPED_TRACE(sharded_saves);
    auto sharded = fully_shard(ShardNet(kWidth, 12), by_block());
    AdamW optimizer(sharded.parameters());
    token_loss(sharded(tokens(0)), targets(0)).backward();
    optimizer.step();
    optimizer.zero_grad();
    std::int64_t all_bytes = 0;
    std::int64_t unit_bytes = 0;
    for (const auto& parameter : sharded.module()->named_parameters()) {
      const std::int64_t bytes = parameter.value().numel() * 4;
      all_bytes += bytes;
      if (parameter.key().starts_with("blocks.0.")) unit_bytes += bytes;
    }
    SnapshotDirectory snapshots(folder.path() + (sharded_saves ? "/sharded" : "/whole"),
                                {.sharded_saves = sharded_saves, .process_group = group_});
    const auto state = sharded.sharded().gathered_state(optimizer);
    const auto memory = std::make_shared<CountMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    snapshots.save(*state, {.step = 1});
    // A unit of all ranks, this rank's chunk of it, a copy of one of its tensors; padding.
    const std::int64_t saving = 2 * unit_bytes + unit_bytes / 2 + all_bytes / 50;
    if (is_counted) {
      EXPECT_LE(memory->most, saving);
    }
    memory->most = memory->live;
    const std::int64_t before = memory->live;
    ASSERT_TRUE(snapshots.load_latest(*state));
    // The pieces of parameters and of both states, and one tensor twice.
    const std::int64_t loading = 3 * all_bytes / world_size_ + 2 * unit_bytes + all_bytes / 50;
    if (is_counted) {
      EXPECT_LE(memory->most - before, loading);
    }
    // Deletes the first, and verifies the second, which it has not written itself.
    snapshots.save(*state, {.step = 2});
    SnapshotDirectory others(folder.path() + (sharded_saves ? "/sharded" : "/whole"),
                             {.sharded_saves = sharded_saves, .process_group = group_});
    const std::int64_t before_last = memory->live;
    memory->most = memory->live;
    others.save(*state, {.step = 3});
    if (is_counted) {
      EXPECT_LE(memory->most - before_last, saving);
    }
    group_.barrier();
  }
}

}  // namespace
}  // namespace lockstep::testing
