#include "lockstep/train/resilient_training.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/tensor.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/recovery/internal/broadcast_value.h"
#include "lockstep/recovery/internal/generations.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/recovery/internal/standing.h"
#include "lockstep/recovery/internal/state_exchange.h"
#include "lockstep/recovery/internal/state_memory.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/recovery/internal/training_state.h"
#include "lockstep/snapshot/internal/agreement.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/preemption.h"

namespace lockstep {
namespace {

// Told to make room where there is no group to agree with.
class ToldToEnd : public Error {
 public:
  ToldToEnd() : Error("this rank was preempted") {}
};

}  // namespace

class ResilientTraining::Impl {
 public:
  Impl(TrainingParts parts, const ResilientOptions& options);

  TrainingEnd run(std::int64_t steps, const MakeStep& make_step);
  std::int64_t steps_done() const { return done_; }
  const ProcessGroup& group() const { return group_; }

 private:
  // Of the steps that this rank has done.
  class StateOfSteps final : public MovableState {
   public:
    explicit StateOfSteps(TrainingState& state) : state_(state) {}
    c10::IValue value() override { return state_.value(); }
    void take(const c10::IValue& value) override { state_.take(value, 0); }
    std::uint64_t parameters_hash() const override { return state_.parameters_hash(); }

   private:
    TrainingState& state_;
  };

  TrainingEnd make_steps(std::int64_t steps, const MakeStep& make_step);
  void begin_generation();
  void agree_on_state();
  void take(const c10::IValue& value, const Standing& standing);
  std::int64_t load_snapshot(const Standing& in_memory);
  void check_if_told();
  bool is_due(int every) const;
  void keep_copies();
  std::string save();
  void end_with(const std::string& failure);
  TrainingEnd end_early();
  std::int64_t leave();
  void drop_group();

  TrainingState state_;
  StateOfSteps movable_{state_};
  const ResilientOptions options_;
  LauncherLink link_;
  StateMemory memory_;
  std::optional<Preemption> preemption_;
  ProcessGroup group_;
  std::optional<SnapshotDirectory> snapshots_;
  bool has_run_ = false;
  std::int64_t done_ = 0;
  /// The generation that made the last of them; 0: one of a job before.
  std::int64_t made_in_ = 0;
  /// The state is what all ranks had after `done_` steps.
  bool is_whole_ = false;
  bool is_in_step_ = false;
  /// All ranks have once agreed on a state.
  bool has_begun_ = false;
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

ResilientTraining::ResilientTraining(TrainingParts parts, const ResilientOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parts), options)) {}

ResilientTraining::~ResilientTraining() = default;

TrainingEnd ResilientTraining::run(std::int64_t steps, const MakeStep& make_step) {
  return impl_->run(steps, make_step);
}

std::int64_t ResilientTraining::steps_done() const {
  return impl_->steps_done();
}

const ProcessGroup& ResilientTraining::process_group() const {
  return impl_->group();
}

ResilientTraining::Impl::Impl(TrainingParts parts, const ResilientOptions& options)
    : state_(std::move(parts)), options_(options) {
  if (is_initialized()) {
    throw UsageError(
        "ResilientTraining: there is a default group already, which would outlive its ranks; leave "
        "init_process_group() to run()");
  }
  if (!options_.directory.empty()) {
    if (state_.parts().optimizer == nullptr) {
      throw UsageError("ResilientTraining: snapshots hold an optimizer; name one in the parts");
    }
    preemption_.emplace();
  } else if (options_.save_interval > 0) {
    throw UsageError("ResilientTraining: save_interval is set, but no folder for snapshots");
  }
  memory_ = StateMemory(link_.take_memory());
}

TrainingEnd ResilientTraining::Impl::run(std::int64_t steps, const MakeStep& make_step) {
  if (std::exchange(has_run_, true)) {
    throw UsageError(
        "ResilientTraining: run() is for all steps at once, as a process that takes a lost one's "
        "place begins with the first; what is done between steps belongs into one");
  }
  try {
    TrainingEnd end{};
    live_through_generations(link_, collective_timeout(options_.init),
                             {.live = [&] { end = make_steps(steps, make_step); },
                              .leave = [&] { return leave(); },
                              .while_waiting = [&] { check_if_told(); }});
    return end;
  } catch (const ToldToEnd&) {
    return end_early();
  }
}

TrainingEnd ResilientTraining::Impl::make_steps(std::int64_t steps, const MakeStep& make_step) {
  begin_generation();
  const Step step = make_step(group_);
  while (done_ < steps) {
    check_if_over(link_);
    if (preemption_ && preemption_->requested()) {
      end_with(save());
      return TrainingEnd::kPreempted;
    }
    state_.remember();
    seed_step(options_.seed, group_.rank(), done_, group_.device());
    recent_calls().note_step(done_);
    is_in_step_ = true;
    failpoint("step.begin");
    step(done_);
    failpoint("step.made");
    is_in_step_ = false;
    ++done_;
    made_in_ = static_cast<std::int64_t>(link_.generation());
    failpoint("step.counted");
    if (torch::optim::LRScheduler* const scheduler = state_.parts().scheduler) scheduler->step();
    if (is_due(options_.check_replicas_every)) repair_replicas(group_, movable_, done_, is_whole_);
    keep_copies();
    failpoint("step.kept");
  }
  state_.remember();
  failpoint("training.end");
  group_.barrier();
  failpoint("training.done");
  return TrainingEnd::kDone;
}

void ResilientTraining::Impl::begin_generation() {
  InitOptions init = options_.init;
  // Copies of the group may outlive this object.
  init.while_waiting = [this, alive = std::weak_ptr<const bool>(alive_)] {
    if (alive.expired()) return;
    check_if_over(link_);
    if (!group_) check_if_told();  // Else all are asked before the next step.
  };
  group_ = init_process_group(init);
  failpoint("recover.grouped");
  if (preemption_) {
    preemption_->set_process_group(group_);
    snapshots_.emplace(options_.directory, SnapshotDirectoryOptions{.process_group = group_});
  }
  agree_on_state();
  failpoint("recover.agreed");
  state_.remember();
}

void ResilientTraining::Impl::agree_on_state() {
  Sources ours{.known_steps = std::max(has_begun_ ? done_ : -1, link_.steps_made())};
  if (is_whole_) {
    ours.state = {.generation = made_in_, .steps = done_};
  } else {
    // All ranks of a machine have the same copy.
    if (group_.local_rank() == 0) ours.memory = memory_.standing();
    if (snapshots_) {
      if (const auto newest = snapshots_->newest()) ours.snapshot_steps = newest->step + 1;
    }
  }
  const SourceChoice source = choose_source(gather_sources(group_, ours));
  failpoint("recover.compared");
  const auto take_from = [&](int rank, const Standing& standing, bool has_it,
                             const c10::IValue& value) {
    const c10::IValue sent = broadcast_value(group_, value, rank);
    if (!has_it) take(sent, standing);
  };
  const bool is_source = group_.rank() == source.rank;
  switch (source.kind) {
    case SourceChoice::Kind::kOwn:
      break;
    case SourceChoice::Kind::kRank: {
      const bool has_it = ours.state == source.standing;
      take_from(source.rank, source.standing, has_it, has_it ? state_.value() : c10::IValue());
      break;
    }
    case SourceChoice::Kind::kSnapshot:
      if (load_snapshot(source.standing) >= source.standing.steps) break;
      [[fallthrough]];
    case SourceChoice::Kind::kMemory:
      take_from(source.rank, source.standing, false, is_source ? memory_.read() : c10::IValue());
      break;
    case SourceChoice::Kind::kBegin:
      take_from(0, {.generation = 0, .steps = 0}, group_.rank() == 0,
                group_.rank() == 0 ? state_.value() : c10::IValue());
      break;
    case SourceChoice::Kind::kLost:
      link_.say_gives_up();
      throw Error(concat("ResilientTraining on rank ", group_.rank(), ": the state after ",
                         source.standing.steps,
                         " steps or more is lost: no rank holds a whole one any more, and there is "
                         "no copy of it. Start the job again to begin with step 0; memory_every or "
                         "snapshots in ResilientOptions keep copies"));
  }
  is_whole_ = true;
  has_begun_ = true;
}

void ResilientTraining::Impl::take(const c10::IValue& value, const Standing& standing) {
  is_whole_ = false;  // Until all of it is there.
  failpoint("recover.received");
  state_.take(value, standing.steps - done_);
  done_ = standing.steps;
  made_in_ = standing.generation;
  failpoint("recover.taken");
}

// The steps of what was loaded; -1: nothing could be, while there is something in memory.
std::int64_t ResilientTraining::Impl::load_snapshot(const Standing& in_memory) {
  const TrainingParts& parts = state_.parts();
  std::optional<Resumed> resumed;
  try {
    resumed = snapshots_->load_latest(*parts.model, *parts.optimizer, [&](const Resumed& found) {
      state_.check_extra(found.extra);
    });
  } catch (const CorruptFile&) {
    if (!in_memory.exists()) throw;
  } catch (const PeerFailed&) {  // To find one that is whole.
    if (!in_memory.exists()) throw;
  }
  if (!resumed) return -1;
  // Through the state, which brings the scheduler there too.
  c10::impl::GenericDict value = state_.value().toGenericDict();
  value.insert_or_assign("extra", tensor_dict_value(resumed->extra));
  // Undefined on all ranks: a file does not say which were zeros.
  value.insert_or_assign("gradients", c10::IValue());
  take(writable_value(value), {.generation = 0, .steps = resumed->step + 1});
  return done_;
}

bool ResilientTraining::Impl::is_due(int every) const {
  return every > 0 && done_ % every == 0;
}

void ResilientTraining::Impl::keep_copies() {
  if (is_due(options_.memory_every)) {
    keep_copy(group_, movable_, {.generation = made_in_, .steps = done_}, memory_, link_);
  }
  if (!is_due(options_.save_interval)) return;
  const std::string failure = save();
  if (failure.empty()) return;
  log(LogLevel::kWarning, concat("no snapshot after ", done_, " steps: ", failure));
}

// Why there is none; empty: it is written, or there is nothing to save.
std::string ResilientTraining::Impl::save() {
  const TrainingParts& parts = state_.parts();
  if (done_ == 0) return "";
  try {
    snapshots_->save(*parts.model, *parts.optimizer, {.step = done_ - 1, .extra = parts.extra});
    return "";
  } catch (const SystemError& error) {
    return error.what();  // Those before it are as they were.
  }
}

// Rank 0 of a group alone knows whether it is written. Nobody is to take this end for a saved
// state.
void ResilientTraining::Impl::end_with(const std::string& failure) {
  const std::string why = group_ ? broadcast_text(group_, failure, 0) : failure;
  if (why.empty()) return;
  throw Error(concat("ResilientTraining: preempted, and what ", done_,
                     " steps have made is not saved: ", why));
}

// Told to make room where there is no group to agree with. Others that hold the state, of the same
// step or one beside it, write it too.
TrainingEnd ResilientTraining::Impl::end_early() {
  drop_group();
  snapshots_.emplace(options_.directory);
  if (is_whole_) end_with(save());
  link_.say_done();
  return TrainingEnd::kPreempted;
}

void ResilientTraining::Impl::check_if_told() {
  if (preemption_ && preemption_->is_told()) throw ToldToEnd();
}

std::int64_t ResilientTraining::Impl::leave() {
  drop_group();
  // Outside of steps the state is that of the steps done; what is written to it is its own value.
  if (is_in_step_) is_whole_ = state_.go_back();
  is_in_step_ = false;
  return done_;
}

void ResilientTraining::Impl::drop_group() {
  if (preemption_) preemption_->set_process_group({});
  snapshots_.reset();
  abandon_default_group(group_);
}

}  // namespace lockstep
