#include "lockstep/train/resilient_training.h"

#include <optional>
#include <utility>

#include <torch/optim/schedulers/lr_scheduler.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/recovery/internal/private_state.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/recovery/internal/training_state.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/preemption.h"

namespace lockstep {
namespace {

// Preempted where there is no group to agree with.
class PreemptedAlone : public Error {
 public:
  PreemptedAlone() : Error("this rank was preempted") {}
};

}  // namespace

// The loop, and what StepRecovery recovers of it.
class ResilientTraining::Impl final : public RecoverableTraining {
 public:
  Impl(TrainingParts parts, const ResilientOptions& options);

  TrainingEnd run(std::int64_t steps, const MakeStep& make_step);
  const ProcessGroup& group() const { return group_; }

  std::vector<at::Tensor> parameters() override { return state_.parameters(); }
  std::int64_t steps_of(const c10::IValue& value) const override {
    return integer_entry(value, "steps", kOtherRank);
  }
  c10::IValue value() override;
  void take(const c10::IValue& value) override;
  std::uint64_t parameters_hash() const override { return state_.parameters_hash(); }
  void remember() override;
  bool roll_back() override { return state_.roll_back(); }
  void drop_group(const ProcessGroup& group) override;
  void set_group(const ProcessGroup& group, bool at_boundary) override;
  std::int64_t steps() const override { return done_; }
  std::int64_t place() const override { return done_; }
  std::int64_t newest_snapshot(const ProcessGroup& group) override;
  std::int64_t load_snapshot(const ProcessGroup& group, bool has_memory) override;
  void save_snapshot(const ProcessGroup& group) override;

 private:
  bool take_out_of_copies();
  TrainingEnd make_steps(std::int64_t steps);
  void make_one_step();
  SnapshotDirectory& snapshots_of(const ProcessGroup& group);
  std::string save(const ProcessGroup& group);
  void end_saved(const std::string& failure);
  TrainingEnd end_alone();

  TrainingState state_;
  const ResilientOptions options_;
  std::optional<Preemption> preemption_;
  bool has_run_ = false;
  std::int64_t done_ = 0;
  const MakeStep* make_step_ = nullptr;
  ProcessGroup group_;
  std::optional<SnapshotDirectory> snapshots_;
  Step step_;
  StepRecovery recovery_;
};

ResilientTraining::ResilientTraining(TrainingParts parts, const ResilientOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parts), options)) {}

ResilientTraining::~ResilientTraining() = default;

TrainingEnd ResilientTraining::run(std::int64_t steps, const MakeStep& make_step) {
  return impl_->run(steps, make_step);
}

std::int64_t ResilientTraining::steps_done() const {
  return impl_->steps();
}

const ProcessGroup& ResilientTraining::process_group() const {
  return impl_->group();
}

ResilientTraining::Impl::Impl(TrainingParts parts, const ResilientOptions& options)
    : state_(std::move(parts)),
      options_(options),
      recovery_(*this, {.init = options.init,
                        .seed = options.seed,
                        .memory_every = options.memory_every,
                        .check_replicas_every = options.check_replicas_every,
                        .save_every = options.save_interval}) {
  if (is_initialized()) {
    throw UsageError(
        "ResilientTraining: a default group already exists and would outlive failed ranks; let "
        "run() call init_process_group()");
  }
  if (!options_.directory.empty()) {
    if (state_.parts().optimizer == nullptr) {
      throw UsageError(
          "ResilientTraining: snapshots need an optimizer; set TrainingParts::optimizer");
    }
    preemption_.emplace();
  } else if (options_.save_interval > 0) {
    throw UsageError("ResilientTraining: save_interval is set without a folder; set `directory`");
  }
}

TrainingEnd ResilientTraining::Impl::run(std::int64_t steps, const MakeStep& make_step) {
  if (std::exchange(has_run_, true)) {
    throw UsageError(
        "ResilientTraining: run() was already called; run all steps in one call, because a "
        "replacement process starts with the first step; move work between steps into a step");
  }
  // The step holds the group, and what the program lends to run().
  struct StepEnds {
    Step& step;
    ~StepEnds() { step = nullptr; }
  } const step_ends{step_};
  make_step_ = &make_step;
  recovery_.set_while_waiting([this] {
    if (preemption_ && preemption_->has_notice()) throw PreemptedAlone();
  });
  try {
    return make_steps(steps);
  } catch (const PreemptedAlone&) {
    return end_alone();
  }
}

TrainingEnd ResilientTraining::Impl::make_steps(std::int64_t steps) {
  recovery_.begin();
  while (recovery_.phase() != RecoveryPhase::kEnded) {
    const bool is_end = done_ >= steps;
    try {
      if (!is_end && preemption_ && preemption_->requested()) {
        end_saved(save(group_));
        recovery_.leave();
        return TrainingEnd::kPreempted;
      }
      if (!is_end) make_one_step();
    } catch (const Error& error) {
      if (!recovery_.recover(error)) throw;
      continue;
    }
    recovery_.boundary(is_end ? BoundaryKind::kTrainingEnd : BoundaryKind::kStep);
    if (!is_end) failpoint("step.kept");
  }
  return TrainingEnd::kDone;
}

void ResilientTraining::Impl::make_one_step() {
  recovery_.begin_step();
  failpoint("step.begin");
  step_(done_);
  failpoint("step.made");
  ++done_;
  failpoint("step.counted");
  if (torch::optim::LRScheduler* const scheduler = state_.parts().scheduler) scheduler->step();
}

c10::IValue ResilientTraining::Impl::value() {
  c10::impl::GenericDict value = state_.value().toGenericDict();
  value.insert_or_assign("steps", done_);
  return value;
}

void ResilientTraining::Impl::take(const c10::IValue& value) {
  const std::int64_t steps = steps_of(value);
  state_.take(value, steps - done_);
  done_ = steps;
}

void ResilientTraining::Impl::remember() {
  state_.remember();
  recent_calls().note_step(done_);
}

void ResilientTraining::Impl::drop_group(const ProcessGroup& /*group*/) {
  state_.leave_copies();
  step_ = nullptr;
  if (preemption_) preemption_->set_process_group({});
  snapshots_.reset();
  group_ = {};
}

void ResilientTraining::Impl::set_group(const ProcessGroup& group, bool /*at_boundary*/) {
  group_ = group;
  if (preemption_) preemption_->set_process_group(group);
  if (group.world_size() == 1 || !group.shares_memory()) take_out_of_copies();
  step_ = (*make_step_)(group);
}

bool ResilientTraining::Impl::take_out_of_copies() {
  std::vector<torch::optim::Optimizer*> optimizers;
  if (auto* const optimizer = state_.parts().optimizer) optimizers.push_back(optimizer);
  return internal::take_out_of_copies(state_.parameters(), optimizers);
}

SnapshotDirectory& ResilientTraining::Impl::snapshots_of(const ProcessGroup& group) {
  if (!snapshots_) {
    snapshots_.emplace(options_.directory, SnapshotDirectoryOptions{.process_group = group});
  }
  return *snapshots_;
}

std::int64_t ResilientTraining::Impl::newest_snapshot(const ProcessGroup& group) {
  if (options_.directory.empty()) return -1;
  const auto newest = snapshots_of(group).newest();
  return newest ? newest->step + 1 : -1;
}

std::int64_t ResilientTraining::Impl::load_snapshot(const ProcessGroup& group, bool has_memory) {
  const TrainingParts& parts = state_.parts();
  std::optional<LoadedSnapshot> resumed;
  try {
    resumed = snapshots_of(group).load_latest(
        *parts.model, *parts.optimizer,
        [&](const LoadedSnapshot& found) { state_.check_extra(found.extra); });
  } catch (const CorruptFile&) {
    if (!has_memory) throw;
  } catch (const PeerFailed&) {  // To find one that is whole.
    if (!has_memory) throw;
  }
  if (!resumed) return -1;
  // Through the state, which brings the scheduler there too.
  c10::impl::GenericDict value = state_.value().toGenericDict();
  value.insert_or_assign("extra", tensor_dict_value(resumed->extra));
  // Undefined on all ranks: a file does not say which were zeros.
  value.insert_or_assign("gradients", c10::IValue());
  value.insert_or_assign("steps", resumed->step + 1);
  take(writable_value(value));
  return done_;
}

void ResilientTraining::Impl::save_snapshot(const ProcessGroup& group) {
  const std::string failure = save(group);
  if (failure.empty()) return;
  log(LogLevel::kWarning, concat("saving the state after ", done_, " steps failed: ", failure));
}

// Why there is none; empty: it is written, or there is nothing to save. Without a group it is this
// process's own.
std::string ResilientTraining::Impl::save(const ProcessGroup& group) {
  const TrainingParts& parts = state_.parts();
  if (done_ == 0) return "";
  try {
    snapshots_of(group).save(*parts.model, *parts.optimizer,
                             {.step = done_ - 1, .extra = parts.extra});
    return "";
  } catch (const SystemError& error) {
    return error.what();  // Those before it are as they were.
  }
}

// Rank 0 of a group alone knows whether it is written. Nobody is to take this end for a saved
// state.
void ResilientTraining::Impl::end_saved(const std::string& failure) {
  const std::string why = group_ ? broadcast_text(group_, failure, 0) : failure;
  if (why.empty()) return;
  throw Error(concat("ResilientTraining: preempted after ", done_,
                     " steps, but the state is not saved: ", why));
}

// Others that hold the state, of the same step or one beside it, write it too.
TrainingEnd ResilientTraining::Impl::end_alone() {
  drop_group({});
  // Else the ranks of the next generation have a newer state.
  if (recovery_.holds_state() && take_out_of_copies()) end_saved(save({}));
  recovery_.leave();
  return TrainingEnd::kPreempted;
}

}  // namespace lockstep
