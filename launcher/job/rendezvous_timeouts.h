#pragma once

#include <chrono>

namespace lockstep::inline internal {

/// Timeouts of the rendezvous.
struct RendezvousTimeouts {
  /// For the minimum number of machines to join.
  std::chrono::milliseconds join{600'000};
  /// For more machines to join, once the minimum has joined.
  std::chrono::milliseconds last_call{30'000};
  /// Interval between reports of an agent.
  std::chrono::milliseconds keep_alive_interval{5'000};
  /// An agent that has not reported for this time is lost.
  std::chrono::milliseconds keep_alive_limit{30'000};
  /// An agent whose connection closed, as when its process ends, is lost unless it reconnects in
  /// this time.
  std::chrono::milliseconds reconnect{1'000};
  /// A machine that was lost three times within `flapping` may rejoin only after `cool_down`, which
  /// doubles with each further loss.
  std::chrono::milliseconds flapping{300'000};
  std::chrono::milliseconds cool_down{10'000};
};

}  // namespace lockstep::inline internal
