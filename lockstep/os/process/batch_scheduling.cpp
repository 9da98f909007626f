#include "lockstep/os/process/batch_scheduling.h"

#include <sched.h>

namespace lockstep::inline internal {
namespace {

bool set_policy(int policy) {
  const sched_param parameters{};
  return ::sched_setscheduler(0, policy, &parameters) == 0;
}

}  // namespace

BatchScheduling::BatchScheduling()
    : changed_(::sched_getscheduler(0) == SCHED_OTHER && set_policy(SCHED_BATCH)) {}

BatchScheduling::~BatchScheduling() {
  if (changed_) set_policy(SCHED_OTHER);
}

}  // namespace lockstep::inline internal
