// How shards are recovered: from the copies that ranks leave of them.
#include <algorithm>
#include <functional>

#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/train/internal/accelerator_training.h"

namespace lockstep::inline internal {

ShardedModule* AcceleratorTraining::sharded() const {
  return state_.replicas.empty() ? nullptr : state_.replicas.front()->sharded();
}

KeptShards& AcceleratorTraining::kept_shards() {
  if (!kept_shards_) kept_shards_ = sharded()->kept_shards(*state_.optimizers.front()->optimizer);
  return *kept_shards_;
}

void AcceleratorTraining::begin_shards() {
  if (sharded() != nullptr) kept_shards().begin(state_.group_);
}

void AcceleratorTraining::sync_buffers() {
  if (kept_shards_) sharded()->sync_buffers();
}

void AcceleratorTraining::keep_shards() {
  sync_buffers();
  kept_shards_->keep();
}

bool AcceleratorTraining::settle_shards() {
  return kept_shards_->settle();
}

void AcceleratorTraining::choose_parameters() {
  ShardedModule* const module = sharded();
  if (module == nullptr) return;
  const bool uses_copies = state_.has_lost_group() && kept_shards_ && kept_shards_->exists();
  module->compute_alone(uses_copies ? kept_shards_.get() : nullptr);
}

}  // namespace lockstep::inline internal

namespace lockstep {

// Copies of shards are in memory that all ranks map. Collective.
std::string AcceleratorState::why_shards_not_recoverable() const {
  if (options_.fully_shard.hybrid_shard != HybridShard::kNone)
    return "strategy kFullyShard with hybrid_shard";
  if (replicas.size() != 1 || optimizers.size() != 1)
    return "strategy kFullyShard with several models or optimizers";
  if (!group_.device().is_cpu()) return "strategy kFullyShard on devices";
  // The groups that a number makes are of the ranks that there were.
  if (options_.fully_shard.reshard_after_forward.ranks()) {
    return "strategy kFullyShard with a number as reshard_after_forward";
  }
  const TensorDict pieces = replicas.front()->sharded()->named_parameters();
  const auto& groups = optimizers.front()->optimizer->param_groups();
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const bool is_piece = std::ranges::any_of(
          pieces, [&](const auto& piece) { return piece.second.is_same(parameter); });
      if (!is_piece) return "strategy kFullyShard with a parameter that is not the model's";
      // Their states may have different dtypes, of which the copy has one.
      if (groups.size() > 1 && c10::isReducedFloatingType(parameter.scalar_type())) {
        return concat("strategy kFullyShard with several parameter groups of ",
                      c10::toString(parameter.scalar_type()));
      }
    }
  }
  const auto domain = static_cast<std::int64_t>(std::hash<std::string>()(memory_domain()));
  const auto rows = gather_rows(group_, {domain});
  const bool is_one_machine =
      std::ranges::all_of(rows, [&](const auto& row) { return row.front() == domain; });
  return is_one_machine ? "" : "strategy kFullyShard on several machines";
}

}  // namespace lockstep
