#include "lockstep/train/internal/accelerator_training.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/nn/internal/layer_group.h"
#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/recovery/internal/private_state.h"
#include "lockstep/recovery/internal/state_exchange.h"
#include "lockstep/recovery/internal/training_state.h"
#include "lockstep/recovery/internal/update_mark.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/train/internal/accelerator_shards.h"

namespace lockstep::inline internal {

namespace {

// Each rank writes its shard of a copy: one of ranks that differ would be a mixture.
void expect_equal(const ProcessGroup& group, std::uint64_t hash) {
  const ReplicaComparison comparison = compare_parameters(group, hash);
  if (comparison.odd.empty()) return;
  throw Error(concat("one_copy_per_machine: after a recovery the parameters of rank ",
                     comparison.odd.front(), " differ from rank ", comparison.source.value_or(0),
                     "'s, so there is no copy to continue with; resume from a snapshot, and look "
                     "for a change that one rank alone has made"));
}

void copy_tensors(const TensorDict& targets, const TensorDict& values) {
  for (const auto& [name, tensor] : targets) {
    const auto value = std::ranges::find(values, name, &TensorDict::value_type::first);
    if (value == values.end())
      throw UsageError(concat(kOtherRank, ": it has no buffer '", name, "'"));
    const at::Tensor target = tensor;
    target.copy_(value->second);
  }
}

}  // namespace

// Once: what is prepared stays.
void AcceleratorTraining::find_tensors() {
  if (std::exchange(has_tensors_, true)) return;
  for (const auto& replica : state_.replicas) {
    for (const auto& [name, parameter] : replica->parameters()) {
      parameters_.push_back({.parameter = parameter});
    }
    for (const at::Tensor& buffer : replica->module()->buffers()) buffers_.add(buffer);
  }
}

std::vector<at::Tensor> AcceleratorTraining::parameters() {
  find_tensors();
  return found_parameters();
}

// Of a process that joins: none, before its models are prepared.
std::vector<at::Tensor> AcceleratorTraining::found_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const Watched& watched : parameters_) parameters.push_back(watched.parameter);
  return parameters;
}

void AcceleratorTraining::remember() {
  find_tensors();
  cursors_.clear();
  for (const auto& loader : state_.loaders) cursors_.push_back(loader->cursor());
  if (state_.scaler_.is_enabled()) {
    state_.update_scaler();
    scaler_ = copies_of(state_.scaler_.state_dict());
  }
  buffers_.remember();
  for (const auto& one : state_.registered) registered_[one.name] = copies_of(one.state_dict());
  rates_.clear();
  for (const auto& stepped : state_.optimizers) {
    for (auto& group : stepped->optimizer->param_groups()) {
      rates_.push_back(group.options().get_lr());
    }
  }
  scheduler_steps_.clear();
  for (const auto& scheduled : state_.schedulers) scheduler_steps_.push_back(scheduled->steps);
  for (Watched& watched : parameters_) watched.gradient = gradient_kind(watched.parameter);
  skipped_ = skipped();
  remembered_cursor_ = cursor_;
  if (kept_shards_) kept_shards_->remember();
  choose_parameters();
  steps_ = state_.steps_;
  recent_calls().note_step(steps_);
  begin_step();
}

void AcceleratorTraining::begin_step() {
  most_updates_ = std::max(most_updates_, updates_);
  is_extended_ = false;
  forget_updates();
}

void AcceleratorTraining::return_other_loaders(const std::vector<DataCursor>& cursors) {
  for (std::size_t i = 1; i < std::min(cursors.size(), state_.loaders.size()); ++i) {
    if (state_.loaders[i]->cursor() != cursors[i]) state_.loaders[i]->set_cursor(cursors[i]);
  }
}

void AcceleratorTraining::forget_updates() {
  updates_ = undone_updates_ = 0;
  undos_.clear();
  // The backward() of another optimizer's loss counts for all: after this one's update, too.
  for (const auto& stepped : state_.optimizers)
    stepped->has_new_gradients = stepped->has_stepped = false;
}

std::int64_t AcceleratorTraining::skipped() const {
  std::int64_t bits = 0;
  for (std::size_t i = 0; i < state_.optimizers.size(); ++i) {
    if (state_.optimizers[i]->was_skipped) bits |= std::int64_t{1} << i;
  }
  return bits;
}

void AcceleratorTraining::set_skipped(std::int64_t skipped) {
  for (std::size_t i = 0; i < state_.optimizers.size(); ++i) {
    state_.optimizers[i]->was_skipped = ((skipped >> i) & 1) != 0;
  }
}

int AcceleratorTraining::expected_updates() const {
  return std::max(most_updates_, static_cast<int>(state_.optimizers.size()));
}

void AcceleratorTraining::begin_update(AcceleratorState::PreparedOptimizerState& stepped) {
  const bool may_undo = ++updates_ < expected_updates() || is_extended_;
  has_undo_ = may_undo && state_.options_.strategy != Strategy::kFullyShard;
  if (!has_undo_) return;
  ++undone_updates_;
  if (undos_.contains(stepped.optimizer)) return;
  Undo& undo = undos_[stepped.optimizer];
  const at::NoGradGuard no_grad;
  for (const auto& group : stepped.optimizer->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      undo.parameters.push_back(parameter.detach().clone());
    }
  }
  undo.optimizer = writable_value(optimizer_state_dict(*stepped.optimizer)).deepcopy();
}

// An update with one copy per machine changes nothing where it fails, or tears the copy.
void AcceleratorTraining::fail_update(const AcceleratorState::PreparedOptimizerState& stepped) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : stepped.optimizer->param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  if (CopyPlaces(parameters).are_torn()) return;
  --updates_;
  if (has_undo_) --undone_updates_;
}

void AcceleratorTraining::end_update() {
  if (state_.recovery_) state_.recovery_->set_step_complete(updates_ >= expected_updates());
}

bool AcceleratorTraining::roll_back() {
  const at::NoGradGuard no_grad;
  cursor_ = remembered_cursor_;  // A boundary was reached where the step did not count.
  // What the step was given of other loaders comes again.
  return_other_loaders(cursors_);
  std::copy_n(cursors_.begin(), std::min(cursors_.size(), logged_until_.size()),
              logged_until_.begin());
  // Shards are read from the copies when all ranks have agreed on a state.
  const bool is_whole = kept_shards_ ? kept_shards_->go_back() : undone_updates_ == updates_;
  if (is_whole) {
    for (auto& [optimizer, undo] : undos_) {
      auto saved = undo.parameters.begin();
      for (const auto& group : optimizer->param_groups()) {
        for (const at::Tensor& parameter : group.params()) {
          const at::Tensor target = parameter;
          target.copy_(*saved++);
        }
      }
      adopt_optimizer_state_dict(*optimizer, undo.optimizer, "the state before the step");
    }
  }
  forget_updates();
  for (const Watched& watched : parameters_) reset_gradient(watched.parameter, watched.gradient);
  buffers_.roll_back();
  for (const auto& one : state_.registered) one.load_state_dict(registered_[one.name]);
  if (state_.scaler_.is_enabled()) {
    forget_scaler();
    state_.scaler_.load_state_dict(scaler_);
  }
  for (std::size_t i = 0; i < scheduler_steps_.size(); ++i) {
    AcceleratorState::PreparedSchedulerState& scheduled = *state_.schedulers[i];
    take_back_steps(*scheduled.scheduler, scheduled.steps - scheduler_steps_[i]);
    scheduled.steps = scheduler_steps_[i];
  }
  restore_rates();
  set_skipped(skipped_);
  for (const auto& stepped : state_.optimizers) stepped->is_unscaled = false;
  state_.steps_ = steps_;
  state_.turn_of_step_ = 0;
  state_.pass_of_group_.reset();
  state_.sync_gradients_ = true;
  state_.has_gradients_ = false;
  state_.losses_are_old_ = true;
  state_.held_lines_.clear();
  return is_whole;
}

// What it has found in gradients, and has yet to make of it.
void AcceleratorTraining::forget_scaler() {
  state_.scaler_ = state_.make_scaler();
  state_.has_stepped_with_scaler_ = false;
}

void AcceleratorTraining::move_loader_to_boundary() {
  if (!state_.loaders.empty()) state_.loaders.front()->set_cursor(cursor_);
}

void AcceleratorTraining::restore_rates() {
  auto rate = rates_.begin();
  for (const auto& stepped : state_.optimizers) {
    for (auto& group : stepped->optimizer->param_groups()) group.options().set_lr(*rate++);
  }
}

c10::IValue AcceleratorTraining::value() {
  find_tensors();
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("model", tensor_dict_value(tensors_of_model()));
  dict.insert_or_assign("optimizer",
                        kept_shards_ ? kept_shards_->rest()
                                     : optimizer_state_dict(*state_.optimizers.front()->optimizer));
  if (kept_shards_) dict.insert_or_assign("shards", kept_shards_->version());
  dict.insert_or_assign("values", state_.values());
  std::vector<std::int64_t> gradients;
  for (const Watched& watched : parameters_) gradients.push_back(gradient_kind(watched.parameter));
  dict.insert_or_assign("gradients", at::tensor(gradients));
  dict.insert_or_assign(
      "numbers",
      at::tensor({static_cast<std::int64_t>(cursor_.seed), cursor_.epoch, cursor_.consumed,
                  cursor_.batches, state_.steps_,
                  static_cast<std::int64_t>(std::max(most_updates_, updates_)), skipped()}));
  return writable_value(dict);
}

std::int64_t AcceleratorTraining::steps_of(const c10::IValue& value) const {
  return entry(value, "numbers", kOtherRank).toTensor().const_data_ptr<std::int64_t>()[4];
}

void AcceleratorTraining::take(const c10::IValue& value) {
  const at::NoGradGuard no_grad;
  find_tensors();
  const c10::IValue values = entry(value, "values", kOtherRank);
  const auto scheduler_steps = entry(values, "schedulers", kOtherRank).toList();
  for (std::size_t i = 0; i < std::min(scheduler_steps.size(), state_.schedulers.size()); ++i) {
    AcceleratorState::PreparedSchedulerState& scheduled = *state_.schedulers[i];
    const std::int64_t steps = scheduler_steps.get(i).toInt();
    if (scheduled.steps <= steps) continue;  // Ahead of a copy in memory.
    take_back_steps(*scheduled.scheduler, scheduled.steps - steps);
    scheduled.steps = steps;
  }
  state_.check_values(values, kOtherRank);
  if (state_.scaler_.is_enabled()) forget_scaler();  // Its update is in the state that comes.
  state_.take_registered(values, kOtherRank);
  const TensorDict model = tensor_dict(entry(value, "model", kOtherRank), kOtherRank);
  const c10::IValue optimizer = entry(value, "optimizer", kOtherRank);
  if (sharded() != nullptr) {
    copy_tensors(tensors_of_model(), model);
    kept_shards().take(integer_entry(value, "shards", kOtherRank), optimizer);
  } else {
    load_state_dict(*state_.replicas.front()->module(), model, kOtherRank);
    adopt_optimizer_state_dict(*state_.optimizers.front()->optimizer, optimizer, kOtherRank);
  }
  state_.take_values(values, kOtherRank);
  const at::Tensor gradients = entry(value, "gradients", kOtherRank).toTensor();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    reset_gradient(parameters_[i].parameter, gradients.const_data_ptr<std::int64_t>()[i]);
  }
  const at::Tensor numbers = entry(value, "numbers", kOtherRank).toTensor();
  const auto* const number = numbers.const_data_ptr<std::int64_t>();
  cursor_ = {.seed = static_cast<std::uint64_t>(number[0]),
             .epoch = number[1],
             .consumed = number[2],
             .batches = number[3]};
  // In the middle of a loop, too: where replicas were compared.
  if (!state_.loaders.empty()) state_.loaders.front()->go_to(cursor_, state_.group_);
  state_.steps_ = number[4];
  most_updates_ = static_cast<int>(number[5]);
  set_skipped(number[6]);
  forget_updates();
  logged_until_.clear();  // It continues where this state is.
}

void AcceleratorTraining::drop_group(const ProcessGroup& group) {
  CopyPlaces(found_parameters()).leave();
  state_.end_left_step();
  if (state_.shards_) state_.shards_->discard_step();
  state_.group_ = group;
  if (ShardedModule* const module = sharded()) {
    state_.shard_group_ = group;
    module->drop_group();
    choose_parameters();
  }
  regroup_layers(group);
  left_directories_.push_back(std::exchange(state_.directories, {}));
  // What it is given without a group does not count.
  if (logged_until_.empty()) {
    logged_until_ = cursors_between_;
    for (std::size_t i = logged_until_.size(); i < state_.loaders.size(); ++i) {
      logged_until_.push_back(state_.loaders[i]->cursor());
    }
  }
  for (const auto& loader : state_.loaders) loader->set_log(nullptr, 0);
  state_.sample_log_.reset();
}

void AcceleratorTraining::log_until_here() {
  for (std::size_t i = 0; i < std::min(logged_until_.size(), state_.loaders.size()); ++i) {
    logged_until_[i] = state_.loaders[i]->cursor();
  }
}

void AcceleratorTraining::set_group(const ProcessGroup& group, bool at_boundary) {
  state_.group_ = group;
  state_.directories.clear();
  left_directories_.clear();
  regroup_layers(group);
  if (state_.shards_) state_.shards_->set_group();
  if (at_boundary && state_.options_.one_copy_per_machine) prepare_copies();
  const bool may_share = at_boundary && has_shared_copies(group);
  if (ShardedModule* const module = sharded()) {
    state_.shard_group_ = group;
    use_scaler_of_group();
    module->regroup(group, kept_shards(), /*is_final=*/at_boundary);
  } else {
    for (const auto& replica : state_.replicas) replica->replicate_over(group, may_share);
  }
  if (at_boundary) warn_of_replicas();
  state_.open_sample_log();
  for (std::size_t i = 0; i < state_.loaders.size(); ++i) {
    LoaderPosition& loader = *state_.loaders[i];
    if (i > 0) {
      loader.set_process_group(group);
    } else if (at_boundary) {
      loader.go_to(cursor_, group);
    }
    // Behind the change, so that the log tells what a batch is now. In code between two steps only
    // other loaders hand out samples.
    if (state_.sample_log_ && (i > 0 || at_boundary)) {
      const bool is_interrupted = i > 0 && i < logged_until_.size();
      loader.set_log(state_.sample_log_, static_cast<int>(i),
                     is_interrupted ? std::optional(logged_until_[i]) : std::nullopt);
    }
  }
  logged_until_.clear();
}

// Ranks that have kept the memory of the last copy go on in it.
void AcceleratorTraining::prepare_copies() {
  const ProcessGroup& group = state_.group_;
  const bool have_copy = group.world_size() > 1 && group.shares_memory();
  if (have_copy) {
    const std::optional<KeptMemory> kept = keep_memory(group, parameters());
    if (kept && kept->has_all_trained()) return;
  }
  expect_equal(group, parameters_hash());
  if (!have_copy) take_out_of_copies();
}

bool AcceleratorTraining::take_out_of_copies() {
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto& stepped : state_.optimizers) optimizers.push_back(stepped->optimizer);
  return internal::take_out_of_copies(parameters(), optimizers);
}

// Once: where machines have joined.
void AcceleratorTraining::warn_of_replicas() {
  const ProcessGroup& group = state_.group_;
  const bool has_copy = group.world_size() == 1 || has_shared_copies(group);
  if (has_copy || !state_.options_.one_copy_per_machine) return;
  if (std::exchange(has_warned_of_replicas_, true) || group.rank() != 0) return;
  log(LogLevel::kWarning,
      concat("one_copy_per_machine: the ranks no longer share memory (backend ",
             group.backend_name(), "); each continues with a replica of its own"));
}

std::int64_t AcceleratorTraining::place() const {
  constexpr int kBitsOfBatches = 40;
  return (cursor_.epoch << kBitsOfBatches) + cursor_.batches;
}

// What it has found in gradients of a step that goes on is in its state.
void AcceleratorTraining::use_scaler_of_group() {
  if (!state_.scaler_.is_enabled()) return;
  state_.update_scaler();
  const TensorDict scaler = copies_of(state_.scaler_.state_dict());
  state_.scaler_ = state_.make_scaler();
  state_.scaler_.load_state_dict(scaler);
}

// Of which each rank has all: without what is sharded.
TensorDict AcceleratorTraining::tensors_of_model() const {
  const torch::nn::Module& module = *state_.replicas.front()->module();
  if (sharded() == nullptr) return state_dict(module);
  TensorDict buffers;
  for (const auto& buffer : module.named_buffers())
    buffers.emplace_back(buffer.key(), buffer.value());
  return buffers;
}

std::uint64_t AcceleratorTraining::parameters_hash() const {
  if (sharded() != nullptr) return 0;  // Those of no rank are another's.
  return hash_of_all(found_parameters());
}

}  // namespace lockstep::inline internal
