#include "lockstep/train/resilient_training.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/train/broadcast_value.h"

namespace lockstep {
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

struct Standing {
  std::int64_t steps = 0;
  bool is_whole = false;
  bool has_begun = false;
};

std::vector<Standing> standings(const ProcessGroup& group, const Standing& own) {
  const at::Tensor ours =
      at::tensor({own.steps, std::int64_t{own.is_whole}, std::int64_t{own.has_begun}})
          .to(group.device());
  at::Tensor all = at::empty({3 * group.world_size()}, ours.options());
  group.all_gather_into_tensor(all, ours);
  all = all.cpu();
  std::vector<Standing> result;
  for (const std::int64_t* at = all.const_data_ptr<std::int64_t>();
       result.size() < static_cast<std::size_t>(group.world_size()); at += 3) {
    result.push_back({.steps = at[0], .is_whole = at[1] != 0, .has_begun = at[2] != 0});
  }
  return result;
}

}  // namespace

ResilientTraining::ResilientTraining(TrainingParts parts, const ResilientOptions& options)
    : state_(std::move(parts)), options_(options) {
  if (is_initialized()) {
    throw UsageError(
        "ResilientTraining: there is a default group already, which would outlive its ranks; leave "
        "init_process_group() to run()");
  }
}

void ResilientTraining::run(std::int64_t steps, const MakeStep& make_step) {
  link_.say_keeps_state();
  for (;;) {
    std::string why;
    try {
      make_steps(steps, make_step);
      link_.say_done();
      return;
    } catch (const Error& error) {
      const bool ends_generation = dynamic_cast<const GenerationOver*>(&error) != nullptr ||
                                   dynamic_cast<const PeerLost*>(&error) != nullptr ||
                                   dynamic_cast<const PeerFailed*>(&error) != nullptr ||
                                   dynamic_cast<const TimeoutError*>(&error) != nullptr ||
                                   dynamic_cast<const CommError*>(&error) != nullptr;
      if (!link_.connected() || !ends_generation) throw;
      why = error.what();
    }
    leave(why);
  }
}

void ResilientTraining::make_steps(std::int64_t steps, const MakeStep& make_step) {
  begin_generation();
  const Step step = make_step(group_);
  while (done_ < steps) {
    if (link_.has_news()) throw GenerationOver();
    state_.remember();
    seed_step();
    is_in_step_ = true;
    step(done_);
    is_in_step_ = false;
    ++done_;
    if (torch::optim::LRScheduler* const scheduler = state_.parts().scheduler) scheduler->step();
  }
  state_.remember();
  group_.barrier();
}

void ResilientTraining::begin_generation() {
  InitOptions init = options_.init;
  init.while_waiting = [this] {
    if (link_.has_news()) throw GenerationOver();
  };
  group_ = init_process_group(init);
  agree_on_state();
  state_.remember();
}

// The ranks that have made most steps have what the others are to have.
void ResilientTraining::agree_on_state() {
  const Standing own{.steps = done_, .is_whole = is_whole_, .has_begun = has_begun_};
  const std::vector<Standing> all = standings(group_, own);
  int source = -1;
  bool all_equal = true;
  bool any_begun = false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    any_begun = any_begun || all[rank].has_begun;
    all_equal = all_equal && all[rank].is_whole && all[rank].steps == all[0].steps;
    if (!all[rank].is_whole) continue;
    if (source < 0 || all[rank].steps > all[static_cast<std::size_t>(source)].steps) {
      source = static_cast<int>(rank);
    }
  }
  if (all_equal) return;
  if (source < 0 && any_begun) {
    throw Error(concat("ResilientTraining on rank ", group_.rank(),
                       ": no rank holds a whole state any more"));
  }
  const std::int64_t steps = source < 0 ? 0 : all[static_cast<std::size_t>(source)].steps;
  if (source < 0) source = 0;  // Nobody has made a step: all begin as rank 0 does.
  const bool has_it = group_.rank() == source || (is_whole_ && done_ == steps);
  if (!has_it) is_whole_ = false;
  const c10::IValue value =
      broadcast_value(group_, has_it ? state_.value() : c10::IValue(), source);
  if (!has_it) state_.take(value, steps - done_);
  done_ = steps;
  is_whole_ = true;
  has_begun_ = true;
}

void ResilientTraining::seed_step() const {
  const auto rank = static_cast<std::uint64_t>(group_.rank());
  const auto step = static_cast<std::uint64_t>(done_);
  at::manual_seed(mix(mix(mix(options_.seed) + rank) + step));
}

void ResilientTraining::leave(const std::string& why) {
  // Outside of steps parameters are overwritten by their own values only.
  const bool is_back = state_.go_back();
  if (is_in_step_) is_whole_ = is_back;
  is_in_step_ = false;
  // Others may wait in a collective for this rank.
  if (group_) {
    if (const auto backend = group_.c10d_backend()) backend->abort();
  }
  group_ = {};
  destroy_process_group();
  link_.say_left_group(why);
  link_.take_place();
}

}  // namespace lockstep
