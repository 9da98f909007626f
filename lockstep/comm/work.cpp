#include "lockstep/comm/work.h"

#include <algorithm>

#include "lockstep/comm/work_state.h"

namespace lockstep {
namespace {

// The backend's own deadline says more, so ours comes after it: for work that is stuck in a queue.
constexpr std::chrono::milliseconds kGraceAfterBackendDeadline{500};

}  // namespace

bool Work::is_completed() const {
  return !state_ || state_->work->isCompleted();
}

void Work::wait() const {
  if (!state_) return;
  try {
    state_->work->wait(state_->deadline.remaining() + kGraceAfterBackendDeadline);
  } catch (...) {
    rethrow_named(state_->name);
  }
}

}  // namespace lockstep
