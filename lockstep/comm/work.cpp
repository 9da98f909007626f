#include "lockstep/comm/work.h"

#include "lockstep/base/concat.h"
#include "lockstep/base/log.h"
#include "lockstep/base/recent_calls.h"
#include "lockstep/comm/hang_report.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {
namespace {

// The backend's own deadline says more, so ours comes after it: for work that is stuck in a queue.
constexpr std::chrono::milliseconds kGraceAfterBackendDeadline{500};

constexpr std::chrono::milliseconds kSliceOfWait{10'000};
constexpr std::chrono::milliseconds kSliceWithQuestions{100};

// Waits for at most `slice`. Returns whether the work has ended, well or not.
bool ended_within(c10d::Work& work, std::chrono::milliseconds slice) {
  try {
    work.wait(slice);
    return true;
  } catch (...) {
    return work.isCompleted();  // Else it was the slice that ended.
  }
}

void wait_and_report(const Work::State& state) {
  const auto remaining = [&] { return state.deadline.remaining() + kGraceAfterBackendDeadline; };
  const auto start = Deadline::Clock::now();
  const auto slice = state.while_waiting ? kSliceWithQuestions : kSliceOfWait;
  auto next_word = start + kSliceOfWait;
  while (state.in_slices && remaining() > slice && !ended_within(*state.work, slice)) {
    if (state.while_waiting) state.while_waiting();
    const auto now = Deadline::Clock::now();
    if (now < next_word) continue;
    next_word = now + kSliceOfWait;
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - start);
    log(LogLevel::kWarning, concat(describe(state.name), ": still waiting after ", waited.count(),
                                   " s; a rank is slow, stuck or stopped"));
  }
  // Work that has ended returns at once, or throws what it failed with.
  state.work->wait(remaining());
}

}  // namespace

bool Work::is_completed() const {
  return !state_ || state_->done || state_->work->isCompleted();
}

void Work::wait() const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->done) return;
  recent_calls().wait(state_->recent_call);
  try {
    wait_and_report(*state_);
  } catch (...) {
    rethrow_named(state_->name, [this](bool is_explained) {
      return state_->store
                 ? report_hang(state_->store, state_->world_size, state_->name, is_explained)
                 : HangReport();
    });
  }
  state_->done = true;
  if (state_->ends_call) recent_calls().end(state_->recent_call);
}

}  // namespace lockstep
