#include "lockstep/train/internal/accelerator_training.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/stand_in_group.h"
#include "lockstep/nn/internal/layer_group.h"
#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/os/machine/machine.h"
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

namespace lockstep {

using internal::AcceleratorTraining;
using internal::StepRecovery;

void AcceleratorState::join() {
  if (!options_.recover || !StepRecovery::is_offered()) {
    group_ = init_process_group(options_.init);
    return;
  }
  training_ = std::make_unique<AcceleratorTraining>(*this);
  recovery_ = std::make_unique<StepRecovery>(
      *training_, StepRecoveryOptions{.init = options_.init,
                                      .seed = options_.seed,
                                      .memory_every = options_.memory_every,
                                      .check_replicas_every = options_.check_replicas_every,
                                      .keeps_shards = options_.strategy == Strategy::kFullyShard});
  group_ = recovery_->join();
}

bool AcceleratorState::is_discarding() const {
  return recovery_ && recovery_->is_discarding();
}

bool AcceleratorState::has_lost_group() const {
  return recovery_ && recovery_->has_lost_group();
}

void AcceleratorState::choose_parameters() {
  if (training_) training_->choose_parameters();
}

bool AcceleratorState::fail(const Error& error) {
  return recovery_ && recovery_->fail(error);
}

AcceleratorState::StandInGuard::StandInGuard(AcceleratorState& state) : state_(state) {
  if (!state.recovery_) return;
  // The others do not take part in what the program does here.
  const RecoveryPhase phase = state.recovery_->phase();
  if (phase != RecoveryPhase::kReceived && phase != RecoveryPhase::kFinishing) return;
  group_ = std::exchange(state.group_, internal::make_stand_in(state.group_));
}

AcceleratorState::StandInGuard::~StandInGuard() {
  if (group_) state_.group_ = std::move(group_);
}

void AcceleratorState::note_collective() {
  if (recovery_) recovery_->note_collective();
}

std::int64_t AcceleratorState::recoveries() const {
  return recovery_ ? recovery_->recoveries() : 0;
}

int AcceleratorState::process_index() const {
  return has_lost_group() ? recovery_->rank() : group_.rank();
}

int AcceleratorState::num_processes() const {
  return has_lost_group() ? recovery_->world_size() : group_.world_size();
}

// Empty: it is.
std::string AcceleratorState::why_not_recoverable() const {
  if (replicas.empty()) return "no model is prepared";
  if (optimizers.empty()) return "no optimizer is prepared";
  if (options_.ddp.comm_hook) return "a comm hook has state of its own";
  if (group_.backend_name() == "nccl") {
    return "over nccl the other ranks cannot leave a collective in which a rank failed";
  }
  try {
    for (const auto& stepped : optimizers) optimizer_state_dict(*stepped->optimizer);
  } catch (const UsageError& error) {
    return error.what();
  }
  return options_.strategy == Strategy::kFullyShard ? why_shards_not_recoverable() : "";
}

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

// Gradients that a later step is to use: the program accumulates them itself.
bool AcceleratorState::has_unused_gradients() const {
  const auto has_gradient = [](const auto& group) {
    return std::ranges::any_of(group.params(),
                               [](const at::Tensor& one) { return one.grad().defined(); });
  };
  return std::ranges::any_of(optimizers, [&](const auto& stepped) {
    return stepped->has_new_gradients && !stepped->has_stepped &&
           std::ranges::any_of(stepped->optimizer->param_groups(), has_gradient);
  });
}

// Their loops would not go back with the first loader's.
bool AcceleratorState::is_other_loader_in_pass() const {
  return std::any_of(loaders.begin() + 1, loaders.end(),
                     [](const auto& loader) { return loader->is_in_pass(); });
}

void AcceleratorState::visit_boundary(LoaderBoundary boundary) {
  if (recovery_->phase() == RecoveryPhase::kEnded) return;
  if (shards_) shards_->check_backward();
  end_left_step();
  LoaderPosition& loader = *loaders.front();
  if (recovery_->phase() == RecoveryPhase::kInactive) {
    if (!can_recover_ || boundary != LoaderBoundary::kLoopBegins) return;
    const std::string reason = why_not_recoverable();
    if (!reason.empty()) {
      stop_recovering(reason);
      return;
    }
    training_id_ = broadcast_text(group_, training_id_, 0);  // Any rank may become rank 0.
    training_->set_cursor(loader.cursor());
    training_->begin_shards();
    recovery_->activate();
  } else {
    end_left_group();
    const bool is_in_step = turn_of_step_ != 0 || has_unused_gradients();
    const bool is_together = recovery_->phase() == RecoveryPhase::kTraining;
    if (is_in_step && is_together) {
      training_->extend_step();
      return;
    }
    if (boundary == LoaderBoundary::kNextBatch && is_together && is_other_loader_in_pass()) {
      stop_recovering("two data loaders are looped over at once");
      return;
    }
    if (!is_discarding()) training_->set_cursor(loader.cursor());
    // Where ranks hold shards, the boundary decides whether the step counts.
    const bool counts_later = options_.strategy == Strategy::kFullyShard;
    if (!counts_later) flush_lines();
    const bool was_finishing = recovery_->is_finishing();
    const bool ends = boundary == LoaderBoundary::kLoopEnds;
    recovery_->boundary(ends ? BoundaryKind::kEpochEnd : BoundaryKind::kStep);
    if (counts_later) flush_lines();
    if (recovery_->is_finishing()) {
      // Nothing is left to do: each loop ends at once, in the epoch behind which the training
      // ended.
      const DataCursor& end = loader.cursor();
      loader.go_to({.seed = end.seed,
                    .epoch = was_finishing ? end.epoch : std::max<std::int64_t>(end.epoch - 1, 0),
                    .consumed = loader.dataset_size()},
                   group_);
      return;
    }
  }
  if (loader.batches_behind_cursor() > 0) {
    recovery_->begin_step();
    recovery_->set_step_complete(false);
  }
}

void AcceleratorState::stop_recovering(const std::string& reason) {
  can_recover_ = false;
  recovery_->deactivate();
  training_->forget_shards();
  if (group_.rank() != 0) return;
  log(LogLevel::kWarning,
      concat("recovery is off (", reason, "): if a rank fails, all ranks restart"));
}

std::int64_t AcceleratorState::begin_epochs() {
  if (loaders.empty()) {
    throw UsageError("Accelerator::epochs: no data loader is prepared; give one to prepare()");
  }
  arrive();
  return epoch();
}

void AcceleratorState::arrive() {
  if (recovery_) recovery_->arrive();
}

bool AcceleratorState::arrive_to_load(const SnapshotDirectory& snapshots) {
  const bool is_joining = recovery_->phase() == RecoveryPhase::kJoining;
  if (is_joining && !loaders.empty()) training_->set_cursor(loaders.front()->cursor());
  recovery_->arrive([&snapshots](bool is_complete) -> std::int64_t {
    const auto newest = snapshots.newest();
    if (!newest) return -1;
    if (!is_complete) return newest->step;
    try {
      return snapshots.read_latest()->step;
    } catch (const CorruptFile&) {
      return -1;
    }
  });
  return recovery_->phase() == RecoveryPhase::kInactive;
}

void AcceleratorState::set_while_waiting(std::function<void()> while_waiting) {
  if (recovery_) recovery_->set_while_waiting(std::move(while_waiting));
}

bool AcceleratorState::end_training() {
  if (!recovery_ || !recovery_->is_active()) return true;
  const bool counts_later = options_.strategy == Strategy::kFullyShard;
  if (!counts_later) flush_lines();
  if (!is_discarding() && !loaders.empty()) training_->set_cursor(loaders.front()->cursor());
  recovery_->boundary(BoundaryKind::kTrainingEnd);
  if (counts_later) flush_lines();
  return recovery_->phase() == RecoveryPhase::kEnded;
}

void AcceleratorState::leave_training() {
  if (!recovery_ || !recovery_->is_active()) return;
  flush_lines();
  recovery_->leave();
}

bool AcceleratorState::is_main() const {
  if (!recovery_ || recovery_->phase() == RecoveryPhase::kInactive) return group_.rank() == 0;
  return recovery_->is_main();
}

bool AcceleratorState::is_training_over() const {
  return recovery_ && recovery_->is_finishing();
}

bool AcceleratorState::run_on_survivors(const std::function<void()>& action) {
  check_collective("Accelerator: a collective between steps");
  end_left_step();
  if (!recovery_) {
    action();
    return true;
  }
  std::vector<DataCursor> cursors;
  for (const auto& loader : loaders) cursors.push_back(loader->cursor());
  AcceleratorTraining::Between between(*training_, cursors);
  const bool counts = recovery_->run_on_survivors([&] {
    // Where it was interrupted in a loop over another loader.
    training_->return_other_loaders(cursors);
    action();
    training_->sync_buffers();
  });
  if (counts) between.note_success();
  return counts;
}

bool AcceleratorState::complete_step() {
  return !recovery_ || recovery_->complete_step();
}

void AcceleratorState::print(std::string line) {
  if (is_discarding() || !is_main()) return;
  held_lines_.push_back(std::move(line));
  if (!recovery_ || !recovery_->is_in_step()) flush_lines();
}

void AcceleratorState::flush_lines() {
  if (is_discarding()) held_lines_.clear();
  for (const std::string& line : held_lines_) std::cout << line << std::endl;
  held_lines_.clear();
}

}  // namespace lockstep
