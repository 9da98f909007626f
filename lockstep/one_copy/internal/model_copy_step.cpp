// A step as a transaction of all ranks.
#include <algorithm>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {
namespace {

// How long the survivors of a rank that has handed over its gradients wait for each other.
constexpr std::chrono::seconds kForSurvivors{5};

}  // namespace

StepLog::Sizes ModelCopy::log_sizes() const {
  // A chunk has at most so many elements, in blocks, and each of these as many states.
  constexpr std::uint64_t kElements = kChunkBytes / 2;
  constexpr std::uint64_t kMostStateBytes = 4;
  static_assert(kChunkBytes / 8 * (8 + CopyLayout::kStates * 8) <=
                kElements * (2 + CopyLayout::kStates * kMostStateBytes));
  return {.ranks = group_.world_size(),
          .record_words = kHeaderWords + parameters_.size() * (1 + 1 + CopyLayout::kStates),
          .pieces = kElements / CopyLayout::kBlockElements * (1 + CopyLayout::kStates),
          .undo_bytes = kElements * (2 + CopyLayout::kStates * kMostStateBytes)};
}

void ModelCopy::begin_step(const std::vector<std::size_t>& indices, std::uint64_t digest,
                           ModelCopy& decider) {
  check_gradients_are_held("step of ", indices);
  find_changes();
  stepping_ = indices;
  hand_over(indices, digest);
  has_handed_over_ = true;
  meet_in_step(decider);
  check_same_call();
  check_changes();
  find_sources(indices);
}

// A rank that is lost after it has handed over is not needed any more.
void ModelCopy::meet_in_step(ModelCopy& decider) {
  try {
    meet("step of ");
  } catch (const Error& error) {
    const bool is_loss = dynamic_cast<const PeerLost*>(&error) != nullptr;
    const Deadline deadline = Deadline::after(is_loss ? kForSurvivors : std::chrono::seconds(0));
    if (log_->await_hand_over(step_, deadline) == Decision::kUpdate) return;
    if (decider.decide_step(Decision::kVoid) == Decision::kUpdate) return;
    is_broken_ = true;
    throw;
  }
}

void ModelCopy::throw_void_step() const {
  const int rank = log_->decider();
  throw PeerFailed({.operation = "step of " + name_,
                    .group = group_.name(),
                    .own_rank = group_.rank(),
                    .ranks = {rank}},
                   concat("rank ", rank,
                          " could not make the step, and nothing was changed; look "
                          "at its error"));
}

void ModelCopy::commit_step() {
  run_.emplace(*log_, step_, group_.rank());
  publish_changes(group_.rank());
}

void ModelCopy::complete_share() {
  run_->prepare([] {});
  run_->complete();
}

void ModelCopy::end_step(const std::function<void()>& run_share) {
  try {
    meet("update of ");
  } catch (const Error& error) {
    is_broken_ = true;
    if (!run_share) throw;
    const bool is_late = dynamic_cast<const TimeoutError*>(&error) != nullptr;
    const Deadline deadline =
        Deadline::after(is_late ? std::chrono::milliseconds(0) : group_.timeout());
    if (!log_->finish_shares(step_, deadline,
                             [&](int of_share) { finish_share(of_share, run_share); })) {
      throw;
    }
  }
  for (const PrivateMapping::Range& range : pages_) memory_->own().drop(range);
  for (const std::size_t index : stepping_) {
    held_[index] = {};
    at::Tensor& seen = parameters_[index].mutable_grad();
    if (seen.defined() && seen.is_meta()) seen.reset();
  }
  forget_step();
}

void ModelCopy::finish_share(int of_share, const std::function<void()>& run_share) {
  running_share_ = of_share;
  run_.emplace(*log_, step_, of_share);
  run_->prepare([&] {
    publish_changes(of_share);
    for (const Adoption& state : adoptions_) {
      populate_state(state.index, state.k, states_[state.index][state.k].scalar_type(), of_share);
      write_state(state, of_share);
    }
  });
  run_share();
  run_->complete();
  running_share_ = kNoShare;
}

void ModelCopy::abandon_step() noexcept {
  forget_step();
  set_idle(false);
}

void ModelCopy::forget_step() noexcept {
  has_handed_over_ = false;
  run_.reset();
  stepping_.clear();
  changes_.clear();
  pages_.clear();
  adoptions_.clear();
  forget_sources();
}

void ModelCopy::leave_step() noexcept {
  abandon_step();
  log_->leave();
  try {
    group_.c10d_backend()->abort();
  } catch (...) {  // NOLINT(bugprone-empty-catch): peers then see that this rank has left the copy.
  }
}

}  // namespace lockstep::inline internal
