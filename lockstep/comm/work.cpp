#include "lockstep/comm/work.h"

#include <algorithm>
#include <thread>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/hang_report.h"
#include "lockstep/comm/internal/work_state.h"

namespace lockstep {
namespace {

// The backend's own deadline says more, so ours comes after it: for work that is stuck in a queue.
constexpr std::chrono::milliseconds kGraceAfterBackendDeadline{500};

constexpr std::chrono::milliseconds kSliceOfWait{10'000};

enum class Outcome { kComplete, kFailed, kExpired };

// Waits for at most `slice`.
Outcome wait_for(c10d::Work& work, std::chrono::milliseconds slice) {
  try {
    work.wait(slice);
    return Outcome::kComplete;
  } catch (const WaitExpired&) {
    return Outcome::kExpired;
  } catch (...) {
    return work.isCompleted() ? Outcome::kFailed : Outcome::kExpired;
  }
}

Deadline last_deadline(const Deadline& deadline) {
  return Deadline(deadline.instant() + kGraceAfterBackendDeadline);
}

void wait_and_report(const Work::State& state) {
  // Backends read 0 as "no timeout".
  const auto remaining =
      [until = last_deadline(state.deadline.value_or(Deadline::after(state.name.timeout)))] {
        return std::max(until.remaining(), std::chrono::milliseconds(1));
      };
  const auto start = Deadline::Clock::now();
  const auto slice = state.while_waiting ? Work::State::kBetweenQuestions : kSliceOfWait;
  auto next_word = start + kSliceOfWait;
  while (remaining() > slice) {
    const Outcome outcome = wait_for(*state.work, slice);
    if (outcome == Outcome::kComplete) return;
    if (outcome == Outcome::kFailed) break;
    if (state.while_waiting) state.while_waiting();
    const auto now = Deadline::Clock::now();
    if (now < next_word) continue;
    next_word = now + kSliceOfWait;
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - start);
    log(LogLevel::kWarning, concat(describe(state.name), ": still waiting after ", waited.count(),
                                   " s; a rank is slow, stuck or stopped"));
  }
  // The rest of the time, less than a slice; failed work throws its error at once.
  state.work->wait(remaining());
}

// Notes what a wait, or a question, has ended with.
void fail(const Work::State& state) LOCKSTEP_REQUIRES(state.mutex) {
  try {
    const auto report = [&state](bool is_explained) {
      return state.store ? report_hang(state.store, state.world_size, state.name, is_explained)
                         : HangReport();
    };
    rethrow_named(state.name, report, state.failure.get());
  } catch (...) {
    state.error = std::current_exception();
  }
  state.done = true;
}

// Calls while_waiting where that is due, and nobody waits, who would call it. Returns whether the
// work has failed by that.
bool fails_by_question(const Work::State& state) {
  // It is the training thread's: a thread that only looks after messages must not call it.
  if (!state.while_waiting || state.started_by != std::this_thread::get_id()) return false;
  if (!state.mutex.try_lock()) return state.done;
  const MutexLock lock(state.mutex, std::adopt_lock);
  if (state.done) return true;
  const auto now = Deadline::Clock::now();
  if (now < state.next_question) return false;
  state.next_question = now + Work::State::kBetweenQuestions;
  try {
    state.while_waiting();
  } catch (...) {
    fail(state);
  }
  return state.done;
}

}  // namespace

bool Work::is_completed() const {
  if (!state_ || state_->done || state_->work->isCompleted()) return true;
  if (state_->deadline && last_deadline(*state_->deadline).passed()) return true;
  return fails_by_question(*state_);
}

void Work::wait() const {
  if (!state_) return;
  const State& state = *state_;
  const MutexLock lock(state.mutex);
  if (!state.done) {
    recent_calls().wait(state.recent_call);
    try {
      wait_and_report(state);
      if (state.ends_call) recent_calls().end(state.recent_call);
      state.done = true;
    } catch (...) {
      fail(state);
    }
  }
  if (state.error) std::rethrow_exception(state.error);
}

}  // namespace lockstep
