#include "lockstep/comm/work.h"

#include "lockstep/comm/work_state.h"

namespace lockstep {
namespace {

// The backend's own deadline says more, so ours comes after it: for work that is stuck in a queue.
constexpr std::chrono::milliseconds kGraceAfterBackendDeadline{500};

}  // namespace

bool Work::is_completed() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done || state_->work->isCompleted();
}

void Work::wait() const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->done) return;
  try {
    state_->work->wait(state_->deadline.remaining() + kGraceAfterBackendDeadline);
  } catch (...) {
    rethrow_named(state_->name);
  }
  state_->done = true;
}

}  // namespace lockstep
