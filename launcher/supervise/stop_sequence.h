#pragma once

#include <chrono>
#include <optional>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Decides when the workers of a generation get a signal to end, are killed, and are abandoned as
/// stuck: a plan without actions. Each event returns the signal to send to all workers now, 0 for
/// none.
class StopSequence {
 public:
  using Time = Deadline::Clock::time_point;

  /// After SIGKILL only a process stuck in the kernel is still there; it is not waited for longer.
  static constexpr std::chrono::milliseconds kKilledTimeout{10'000};

  explicit StopSequence(std::chrono::milliseconds shutdown_timeout)
      : StopSequence(shutdown_timeout, shutdown_timeout) {}
  /// With another timeout after a signal to the launcher.
  StopSequence(std::chrono::milliseconds shutdown_timeout, std::chrono::milliseconds signal_timeout)
      : shutdown_timeout_(shutdown_timeout), signal_timeout_(signal_timeout) {}

  int on_failure(Time now);
  /// A signal that the launcher got. A second SIGINT kills at once.
  int on_signal(int signal, Time now);
  /// The workers are killed, whether they got a signal before or not.
  int on_kill(Time now);
  /// To be called when deadline() has passed.
  int on_deadline(Time now);

  bool started() const { return phase_ != Phase::kRunning; }
  bool killed() const { return phase_ == Phase::kKilled || phase_ == Phase::kGivenUp; }
  bool given_up() const { return phase_ == Phase::kGivenUp; }
  std::optional<Deadline> deadline() const { return deadline_; }

 private:
  enum class Phase { kRunning, kStopping, kKilled, kGivenUp };

  int stop(int signal, Time now, std::chrono::milliseconds timeout);
  int kill(Time now);

  const std::chrono::milliseconds shutdown_timeout_;
  const std::chrono::milliseconds signal_timeout_;
  Phase phase_ = Phase::kRunning;
  int interrupts_ = 0;
  std::optional<Deadline> deadline_;
};

}  // namespace lockstep::inline internal
