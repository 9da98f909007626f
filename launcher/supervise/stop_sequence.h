#pragma once

#include <chrono>
#include <optional>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Plans when a generation's workers get a signal to end, are killed, and are given up as stuck.
/// Each event returns the signal to send to all workers now; 0: none.
class StopSequence {
 public:
  using Time = Deadline::Clock::time_point;

  /// Time to wait after SIGKILL: only a process stuck in the kernel still exists then.
  static constexpr std::chrono::milliseconds kKilledTimeout{10'000};

  explicit StopSequence(std::chrono::milliseconds shutdown_timeout)
      : StopSequence(shutdown_timeout, shutdown_timeout) {}
  /// With another timeout after a signal to the launcher.
  StopSequence(std::chrono::milliseconds shutdown_timeout, std::chrono::milliseconds signal_timeout)
      : shutdown_timeout_(shutdown_timeout), signal_timeout_(signal_timeout) {}

  int on_failure(Time now);
  /// The launcher got a signal. A second SIGINT kills at once.
  int on_signal(int signal, Time now);
  /// Kills the workers, whether they got a signal before or not.
  int on_kill(Time now);
  /// Call it when deadline() expires.
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
