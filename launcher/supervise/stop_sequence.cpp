#include "launcher/supervise/stop_sequence.h"

#include <csignal>

namespace lockstep::inline internal {

int StopSequence::on_failure(Time now) {
  return phase_ == Phase::kRunning ? stop(SIGTERM, now, shutdown_timeout_) : 0;
}

int StopSequence::on_signal(int signal, Time now) {
  if (signal == SIGINT) ++interrupts_;
  if (phase_ == Phase::kRunning) return stop(signal, now, signal_timeout_);
  return phase_ == Phase::kStopping && interrupts_ >= 2 ? kill(now) : 0;
}

int StopSequence::on_kill(Time now) {
  return killed() ? 0 : kill(now);
}

int StopSequence::on_deadline(Time now) {
  if (phase_ == Phase::kStopping) return kill(now);
  if (phase_ == Phase::kKilled) {
    phase_ = Phase::kGivenUp;
    deadline_.reset();
  }
  return 0;
}

int StopSequence::stop(int signal, Time now, std::chrono::milliseconds timeout) {
  if (timeout <= std::chrono::milliseconds(0)) return kill(now);
  phase_ = Phase::kStopping;
  deadline_ = Deadline(now + timeout);
  return signal;
}

int StopSequence::kill(Time now) {
  phase_ = Phase::kKilled;
  deadline_ = Deadline(now + kKilledTimeout);
  return SIGKILL;
}

}  // namespace lockstep::inline internal
