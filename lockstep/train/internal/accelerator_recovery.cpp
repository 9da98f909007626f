// The steps of an accelerator's program as StepRecovery sees them.
#include <algorithm>
#include <iostream>
#include <utility>

#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/stand_in_group.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/train/internal/accelerator_shards.h"
#include "lockstep/train/internal/accelerator_training.h"

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
