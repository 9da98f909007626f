// Models and optimizers of which each rank has a shard.
#include <memory>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator_state.h"

namespace lockstep {
namespace {

void check_shardable(const torch::optim::Optimizer& optimizer) {
  const auto refuse = [](const char* name, const char* why) {
    throw UsageError(concat("Accelerator::prepare: strategy kFullyShard gives ", name,
                            " a piece of each parameter, ", why));
  };
  if (dynamic_cast<const LAMB*>(&optimizer) != nullptr) {
    refuse("LAMB", "and LAMB needs norms of whole parameters; use AdamW");
  }
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    refuse("torch::optim::LBFGS", "and it needs sums over whole parameters; use AdamW");
  }
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) {
    refuse("torch::optim::Adagrad",
           "and it makes its state of whole ones at construction; use lockstep::Adagrad");
  }
  if (dynamic_cast<const ShardedState*>(&optimizer) != nullptr) {
    refuse("ShardedOptimizer", "which is sharded already; prepare the optimizer that it shards");
  }
}

std::size_t count_parameters(torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

}  // namespace

// With kFullyShard ranks hold gradients of different parameters, of which any may overflow.
GradScaler AcceleratorState::make_scaler() const {
  const bool is_sharded = options_.strategy == Strategy::kFullyShard;
  return GradScaler({.enabled = autocast_dtype_ == at::kHalf,
                     .process_group = is_sharded ? group_ : ProcessGroup()});
}

bool AcceleratorState::shards_in_half() const {
  const auto dtype = options_.fully_shard.mp_policy.param_dtype;
  return shard_group() && (dtype == at::kHalf || dtype == at::kBFloat16);
}

FullyShardOptions AcceleratorState::fully_shard_options() const {
  FullyShardOptions options = options_.fully_shard;
  options.process_group = shard_group_;
  options.replicate_group = replicate_group_;
  options.hybrid_shard = HybridShard::kNone;
  options.gradient_norm = options.gradient_norm || options_.non_finite != NonFinite::kIgnore;
  return options;
}

void AcceleratorState::shard_optimizers() {
  if (options_.strategy != Strategy::kFullyShard) return;
  sharded_parameters_ = 0;
  for (const auto& stepped : optimizers) {
    check_shardable(*stepped->optimizer);
    sharded_parameters_ += count_parameters(*stepped->optimizer);
    for (const auto& replica : replicas) replica->sharded()->shard_optimizer(*stepped->optimizer);
  }
}

// Before zero_grad(), which would miss the gradients of added ones, and before backward() for loops
// that zero them another way.
void AcceleratorState::shard_added_parameters() {
  std::size_t parameters = 0;
  for (const auto& stepped : optimizers) parameters += count_parameters(*stepped->optimizer);
  if (parameters != sharded_parameters_) shard_optimizers();
}

std::vector<at::Tensor> AcceleratorState::own_parts(
    const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> own = parameters;
  for (const auto& replica : replicas) {
    if (replica->sharded() != nullptr) own = replica->sharded()->pieces_of(own);
  }
  return own;
}

std::unique_ptr<GatheredState> AcceleratorState::gathered_state() const {
  if (options_.strategy != Strategy::kFullyShard) return nullptr;
  if (replicas.size() != 1 || optimizers.size() != 1) {
    throw UsageError(
        concat("Accelerator: strategy kFullyShard saves and loads one model and one "
               "optimizer, and ",
               replicas.size(), " and ", optimizers.size(), " are prepared"));
  }
  return replicas.front()->sharded()->gathered_state(*optimizers.front()->optimizer);
}

bool AcceleratorState::has_all_gradients() const {
  if (!shard_group() && !options_.one_copy_per_machine) return true;
  return !has_lost_group() && recoveries() == recoveries_before_gradients_;
}

}  // namespace lockstep
