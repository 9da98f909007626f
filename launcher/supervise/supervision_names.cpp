
#include "launcher/supervise/supervision.h"

namespace lockstep::inline internal {

const char* name_of(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kUnprotected:
      return "unprotected";
    case WorkerState::kRunning:
      return "running";
    case WorkerState::kLeft:
      return "left";
    case WorkerState::kRecovering:
      return "recovering";
    case WorkerState::kWarmingUp:
      return "warming up";
    case WorkerState::kStandby:
      return "standby";
    case WorkerState::kDone:
      return "done";
    case WorkerState::kHanging:
      return "hanging";
    case WorkerState::kDismissed:
      return "dismissed";
    case WorkerState::kStopping:
      return "stopping";
    case WorkerState::kEnded:
      return "ended";
  }
  return "";
}

const char* name_of(SupervisionPhase phase) {
  switch (phase) {
    case SupervisionPhase::kBeginning:
      return "beginning";
    case SupervisionPhase::kRunning:
      return "running";
    case SupervisionPhase::kOver:
      return "over";
    case SupervisionPhase::kBetween:
      return "between";
    case SupervisionPhase::kPreempted:
      return "preempted";
    case SupervisionPhase::kStopping:
      return "stopping";
    case SupervisionPhase::kFinished:
      return "finished";
  }
  return "";
}

}  // namespace lockstep::inline internal
