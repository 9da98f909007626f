// A step as a transaction of all ranks.
#include <algorithm>
#include <bit>
#include <utility>

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
  std::uint64_t sums = 0;
  for (const at::Tensor& parameter : parameters_) {
    sums += 2 * static_cast<std::uint64_t>((parameter.numel() + kSumElements - 1) / kSumElements);
  }
  const std::uint64_t words = kHeaderWords + parameters_.size() * (1 + 1 + CopyLayout::kStates);
  return {.ranks = local_.world_size(),
          .record_words = std::max(words, sums),
          .pieces = kElements / CopyLayout::kBlockElements * (1 + CopyLayout::kStates),
          .undo_bytes = kElements * (2 + CopyLayout::kStates * kMostStateBytes)};
}

void ModelCopy::check_step(const std::vector<std::size_t>& indices) {
  check_gradients_are_held("step of ", indices);
  bring_back_parameters();
}

void ModelCopy::begin_step(const std::vector<std::size_t>& indices, std::uint64_t digest,
                           ModelCopy& decider) {
  decider_ = &decider;
  stepping_ = indices;
  find_changes();
  log_->prepare_undo(layout_.bytes());
  average_over_machines(indices, digest);
  hand_over(indices, digest);
  deciding_ = step_;
  meet_in_step("step of ");
  check_same_call();
  // Machines have compared them before.
  if (is_on_one_machine()) check_changes();
  find_sources(indices);
}

// A rank that is lost after it has handed over is not needed any more.
void ModelCopy::meet_in_step(const char* what) {
  try {
    meet(what);
  } catch (const Error& error) {
    // Over several machines a call that begins later says only that the group has ended.
    const bool is_loss =
        dynamic_cast<const PeerLost*>(&error) != nullptr ||
        (!is_on_one_machine() && dynamic_cast<const CommError*>(&error) != nullptr);
    const Deadline deadline = Deadline::after(is_loss ? kForSurvivors : std::chrono::seconds(0));
    if (log_->await_hand_over(step_, deadline) == Decision::kUpdate) return;
    if (decider_->decide_step(Decision::kVoid) == Decision::kUpdate) return;
    note_loss(error);
    throw;
  }
}

// In shared memory, as what a rank hands over: survivors have it of a rank that is lost.
void ModelCopy::add_up(std::span<double> sums) {
  ++step_;
  std::ranges::transform(sums, log_->own_record(step_).begin(),
                         [](double sum) { return std::bit_cast<std::int64_t>(sum); });
  log_->hand_over(step_);
  meet_in_step("norms of ");
  // Nobody decides that it happens before all have met here.
  if (decider_->is_refused()) decider_->throw_void_step();
  std::ranges::fill(sums, 0.0);
  for (int rank = 0; rank < local_.world_size(); ++rank) {
    auto word = log_->record(rank, step_).begin();
    for (double& sum : sums) sum += std::bit_cast<double>(*word++);
  }
}

void ModelCopy::refuse_step() noexcept {
  try {
    decider_->decide_step(Decision::kVoid);
    ++step_;
    log_->hand_over(step_);
    meet("norms of ");
  } catch (...) {  // NOLINT(bugprone-empty-catch): this rank has an error of its own to report.
  }
}

void ModelCopy::throw_void_step(int rank) const {
  throw PeerFailed({.operation = "step of " + name_,
                    .group = group_.name(),
                    .own_rank = group_.rank(),
                    .ranks = {rank}},
                   concat("rank ", rank,
                          " could not make the step, and nothing was changed; look "
                          "at its error"));
}

void ModelCopy::note_loss(const Error& error) {
  is_broken_ = true;
  if (lost_ranks_ && !lost_ranks_->empty()) return;
  const auto* const operation = dynamic_cast<const OperationError*>(&error);
  lost_ranks_ = operation != nullptr ? operation->fields().ranks : std::vector<int>();
  // Ranks that leave later do so because of this loss.
  if (lost_ranks_->empty()) lost_ranks_ = absent_ranks();
}

std::vector<int> ModelCopy::absent_ranks() const {
  std::vector<int> ranks;
  for (const int absent : log_->absent_ranks()) ranks.push_back(rank_of(absent));
  return ranks;
}

void ModelCopy::throw_broken() const {
  throw PeerLost(
      {.operation = "step of " + name_,
       .group = group_.name(),
       .own_rank = group_.rank(),
       .ranks = lost_ranks_ ? *lost_ranks_ : absent_ranks()},
      is_torn()
          ? "a rank was lost in an earlier step and may have left parameters half updated; resume "
            "from a snapshot"
          : "a rank was lost in an earlier step; make a new group and wrap the model again");
}

void ModelCopy::commit_step() {
  memory_->begin_version();
  run_.emplace(*log_, step_, local_.rank());
  publish_changes(local_.rank());
}

void ModelCopy::complete_share() {
  run_->prepare([] {});
  run_->complete();
}

void ModelCopy::end_step(const std::function<void()>& run_shard) {
  try {
    meet("update of ");
  } catch (const Error& error) {
    note_loss(error);
    const bool is_late = dynamic_cast<const TimeoutError*>(&error) != nullptr;
    const Deadline deadline =
        Deadline::after(is_late ? std::chrono::milliseconds(0) : group_.timeout());
    const bool is_whole = log_->finish_shares(
        step_, deadline, [&](int of_share) { finish_share(of_share, run_shard); });
    if (!is_whole) {
      memory_->mark_torn();
      throw;
    }
  }
  for (const PrivateMapping::Range& range : pages_) memory_->own().drop(range);
  for (const std::size_t index : stepping_) {
    if (has_sum(index)) continue;  // As with replicas .grad stays.
    held_[index] = {};
    at::Tensor& seen = parameters_[index].mutable_grad();
    if (seen.defined() && seen.is_meta()) seen.reset();
  }
  forget_step();
}

void ModelCopy::finish_share(int of_share, const std::function<void()>& run_shard) {
  running_share_ = of_share;
  run_.emplace(*log_, step_, of_share);
  run_->prepare([&] {
    publish_changes(of_share);
    for (const Adoption& state : adoptions_) {
      populate_state(state.index, state.k, states_[state.index][state.k].scalar_type(), of_share);
      write_state(state, of_share);
    }
  });
  run_shard();
  run_->complete();
  running_share_ = kNoShare;
}

void ModelCopy::abandon_step() noexcept {
  forget_step();
  set_idle(false);
}

void ModelCopy::forget_step() noexcept {
  deciding_ = 0;
  decider_ = nullptr;
  run_.reset();
  stepping_.clear();
  changes_.clear();
  pages_.clear();
  adoptions_.clear();
  forget_sources();
}

void ModelCopy::leave() noexcept {
  is_broken_ = true;
  log_->leave();
  memory_->release();
}

void ModelCopy::leave_step() noexcept {
  abandon_step();
  leave();
  memory_->mark_torn();  // This rank does not count the step, which its peers finish.
  try {
    group_.c10d_backend()->abort();
  } catch (...) {  // NOLINT(bugprone-empty-catch): peers then see that this rank has left the copy.
  }
}

}  // namespace lockstep::inline internal
