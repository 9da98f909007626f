// In which dtypes a sharded model computes, and how much memory it takes.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "tests/ranks/folder_of_ranks.h"
#include "tests/ranks/fully_shard_fixture.h"

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
  const std::int64_t share = all_bytes / world_size_;
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
  EXPECT_LE(memory->live - before, share + slack);

  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      memory->most = memory->live;
      static_cast<void>(sharded(tokens(step)));
      EXPECT_LE(memory->most - before, share + unit_bytes + slack);
      EXPECT_LE(memory->live - before, share + slack);
    }
    memory->most = memory->live;
    const at::Tensor loss = token_loss(sharded(tokens(step)), targets(step));
    const std::int64_t saved = 40 * 20 * kWidth * kDepth;  // by autograd
    EXPECT_LE(memory->most - before, share + unit_bytes + saved + slack);
    memory->most = memory->live;
    loss.backward();
    // Gradients are sharded, too; a unit's lie side by side with its parameters, then with the
    // copy that is exchanged.
    EXPECT_LE(memory->most - before, 2 * share + 2 * unit_bytes + saved + slack);
  }
  EXPECT_LE(memory->live - before, 2 * share + slack);
  EXPECT_EQ(gathered_bytes(), 0);
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
                                {.sharded = sharded_saves, .process_group = group_});
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
    group_.barrier();
  }
}

}  // namespace
}  // namespace lockstep::testing
