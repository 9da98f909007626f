#include "lockstep/train/resilient_training.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/values.h"
#include "lockstep/snapshot/writable_value.h"
#include "lockstep/train/broadcast_value.h"

namespace lockstep {

// Of a rank, before a generation's first step.
struct ResilientTraining::Standing {
  std::int64_t steps = -1;         ///< of its state; -1: it has no whole one
  std::int64_t memory_steps = -1;  ///< of its machine's copy
  bool has_begun = false;
};

namespace {

// Another generation begins: not an error, and no one else's to catch.
class GenerationOver : public Error {
 public:
  GenerationOver() : Error("the launcher begins another generation") {}
};

// SplitMix64's mixing function: Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

// Told to make room where there is no group to agree with: neither.
class ToldToEnd : public Error {
 public:
  ToldToEnd() : Error("this rank was told to make room") {}
};

}  // namespace

ResilientTraining::ResilientTraining(TrainingParts parts, const ResilientOptions& options)
    : state_(std::move(parts)), options_(options) {
  if (is_initialized()) {
    throw UsageError(
        "ResilientTraining: there is a default group already, which would outlive its ranks; leave "
        "init_process_group() to run()");
  }
  if (!options_.snapshots.empty()) {
    if (state_.parts().optimizer == nullptr) {
      throw UsageError("ResilientTraining: snapshots hold an optimizer; name one in the parts");
    }
    preemption_.emplace();
  } else if (options_.snapshot_every > 0) {
    throw UsageError("ResilientTraining: snapshot_every is set, but no folder for snapshots");
  }
  memory_ = StateMemory(link_.take_memory());
}

TrainingEnd ResilientTraining::run(std::int64_t steps, const MakeStep& make_step) {
  link_.say_keeps_state();
  for (;;) {
    std::string why;
    bool is_late = false;
    try {
      if (link_.is_standby()) link_.take_place([&] { check_if_told(); });
      const TrainingEnd end = make_steps(steps, make_step);
      link_.say_done();
      return end;
    } catch (const ToldToEnd&) {
      return end_early();
    } catch (const Error& error) {
      is_late = dynamic_cast<const TimeoutError*>(&error) != nullptr;
      const bool ends_generation = is_late ||
                                   dynamic_cast<const GenerationOver*>(&error) != nullptr ||
                                   dynamic_cast<const PeerLost*>(&error) != nullptr ||
                                   dynamic_cast<const PeerFailed*>(&error) != nullptr ||
                                   dynamic_cast<const CommError*>(&error) != nullptr;
      if (!link_.connected() || !ends_generation) throw;
      why = error.what();
    }
    try {
      leave(why, is_late);
    } catch (const ToldToEnd&) {
      return end_early();
    }
  }
}

TrainingEnd ResilientTraining::make_steps(std::int64_t steps, const MakeStep& make_step) {
  begin_generation();
  const Step step = make_step(group_);
  while (done_ < steps) {
    if (link_.has_news()) throw GenerationOver();
    if (preemption_ && preemption_->requested()) {
      save();
      return TrainingEnd::kPreempted;
    }
    state_.remember();
    seed_step();
    is_in_step_ = true;
    step(done_);
    is_in_step_ = false;
    ++done_;
    if (torch::optim::LRScheduler* const scheduler = state_.parts().scheduler) scheduler->step();
    keep_copies();
  }
  state_.remember();
  group_.barrier();
  return TrainingEnd::kDone;
}

void ResilientTraining::begin_generation() {
  InitOptions init = options_.init;
  // Copies of the group may outlive this object.
  init.while_waiting = [this, alive = std::weak_ptr<const bool>(alive_)] {
    if (alive.expired()) return;
    if (link_.has_news()) throw GenerationOver();
    if (!group_) check_if_told();  // Else all are asked before the next step.
  };
  group_ = init_process_group(init);
  if (preemption_) preemption_->set_group(group_);
  agree_on_state();
  state_.remember();
}

std::vector<ResilientTraining::Standing> ResilientTraining::standings() const {
  const at::Tensor ours = at::tensor({is_whole_ ? done_ : std::int64_t{-1},
                                      memory_.steps().value_or(-1), std::int64_t{has_begun_}})
                              .to(group_.device());
  at::Tensor all = at::empty({3 * group_.world_size()}, ours.options());
  group_.all_gather_into_tensor(all, ours);
  all = all.cpu();
  const auto* const numbers = all.const_data_ptr<std::int64_t>();
  std::vector<Standing> result;
  for (std::int64_t at = 0; at < all.numel(); at += 3) {
    result.push_back(
        {.steps = numbers[at], .memory_steps = numbers[at + 1], .has_begun = numbers[at + 2] != 0});
  }
  return result;
}

// The ranks that have made most steps have what the others are to have.
void ResilientTraining::agree_on_state() {
  const std::vector<Standing> all = standings();
  const auto source = static_cast<int>(std::ranges::max_element(all, {}, &Standing::steps) -
                                       all.begin());  // The first of them.
  const std::int64_t steps = all[static_cast<std::size_t>(source)].steps;
  const auto is_there = [&](const Standing& rank) { return rank.steps == steps; };
  if (steps < 0) {
    begin_anew(all);
  } else if (!std::ranges::all_of(all, is_there)) {
    take_from(source, steps);
  }
  is_whole_ = true;
  has_begun_ = true;
}

// No rank has a whole state: they begin, or were all lost at once.
void ResilientTraining::begin_anew(const std::vector<Standing>& all) {
  const auto kept = std::ranges::max_element(all, {}, &Standing::memory_steps);
  if (kept->memory_steps >= 0) {
    const auto source = static_cast<int>(kept - all.begin());
    const bool is_source = group_.rank() == source;
    const c10::IValue value =
        broadcast_value(group_, is_source ? memory_.read() : c10::IValue(), source);
    take(value, kept->memory_steps);
    return;
  }
  if (!options_.snapshots.empty() && load_snapshot()) return;
  if (std::ranges::any_of(all, &Standing::has_begun)) {
    throw Error(concat("ResilientTraining on rank ", group_.rank(),
                       ": no rank holds a whole state any more, and there is no copy of one"));
  }
  const bool is_source = group_.rank() == 0;
  const c10::IValue value = broadcast_value(group_, is_source ? state_.value() : c10::IValue(), 0);
  if (!is_source) take(value, 0);
}

void ResilientTraining::take_from(int source, std::int64_t steps) {
  const bool has_it = is_whole_ && done_ == steps;
  const c10::IValue value =
      broadcast_value(group_, has_it ? state_.value() : c10::IValue(), source);
  if (!has_it) take(value, steps);
}

void ResilientTraining::take(const c10::IValue& value, std::int64_t steps) {
  is_whole_ = false;  // Until all of it is there.
  state_.take(value, steps - done_);
  done_ = steps;
}

bool ResilientTraining::load_snapshot() {
  const TrainingParts& parts = state_.parts();
  SnapshotDirectory snapshots(options_.snapshots, {.group = group_});
  const auto resumed = snapshots.load_latest(*parts.model, *parts.optimizer);
  if (!resumed) return false;
  // Through the state, which brings the scheduler there too.
  c10::impl::GenericDict value = state_.value().toGenericDict();
  value.insert_or_assign("extra", tensor_dict_value(resumed->extra));
  take(writable_value(value), resumed->step + 1);
  return true;
}

void ResilientTraining::keep_copies() {
  const auto is_due = [&](int every) { return every > 0 && done_ % every == 0; };
  if (is_due(options_.memory_every) && link_.connected() && group_.local_rank() == 0) {
    try {
      if (memory_.write(state_.value(), done_)) link_.leave_memory(memory_.file());
    } catch (const SystemError& error) {
      log(LogLevel::kWarning, concat("no copy of the state in memory: ", error.what()));
    }
  }
  if (is_due(options_.snapshot_every)) save();
}

void ResilientTraining::save() {
  const TrainingParts& parts = state_.parts();
  if (done_ == 0) return;
  try {
    SnapshotDirectory(options_.snapshots, {.group = group_})
        .save(*parts.model, *parts.optimizer, {.step = done_ - 1, .extra = parts.extra});
  } catch (const SystemError& error) {
    // Those before it are as they were.
    log(LogLevel::kWarning, concat("no snapshot after ", done_, " steps: ", error.what()));
  }
}

// Told to make room where there is no group to agree with.
TrainingEnd ResilientTraining::end_early() {
  drop_group();
  if (is_whole_) save();
  link_.say_done();
  return TrainingEnd::kPreempted;
}

void ResilientTraining::check_if_told() {
  if (preemption_ && preemption_->is_told()) throw ToldToEnd();
}

void ResilientTraining::seed_step() const {
  const auto rank = static_cast<std::uint64_t>(group_.rank());
  const auto step = static_cast<std::uint64_t>(done_);
  at::manual_seed(mix(mix(mix(options_.seed) + rank) + step));
}

void ResilientTraining::leave(const std::string& why, bool is_late) {
  drop_group();
  // Outside of steps the state is that of the steps done; what is written to it is its own value.
  if (is_in_step_) is_whole_ = state_.go_back();
  is_in_step_ = false;
  link_.say_left_group(why, is_late, done_);
  link_.take_place([&] { check_if_told(); });
}

void ResilientTraining::drop_group() {
  if (preemption_) preemption_->set_group({});
  // Others may wait in a collective for this rank.
  if (group_) {
    if (const auto backend = group_.c10d_backend()) backend->abort();
  }
  group_ = {};
  destroy_process_group();
}

}  // namespace lockstep
