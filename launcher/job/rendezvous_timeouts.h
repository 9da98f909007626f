#pragma once

#include <chrono>

namespace lockstep::inline internal {

struct RendezvousTimeouts {
  /// For as many machines as the job needs at least.
  std::chrono::milliseconds join{600'000};
  /// For more of them, once there are enough.
  std::chrono::milliseconds last_call{30'000};
  /// An agent says at least so often that it is there; one that has not for `keep_alive_limit` is
  /// lost.
  std::chrono::milliseconds keep_alive_interval{5'000};
  std::chrono::milliseconds keep_alive_limit{30'000};
  /// The same once its connection is closed, as it is when its process has ended.
  std::chrono::milliseconds reconnect{1'000};
  /// A machine that was lost three times within `flapping` may come back only after `cool_down`,
  /// which doubles with each further loss.
  std::chrono::milliseconds flapping{300'000};
  std::chrono::milliseconds cool_down{10'000};
};

}  // namespace lockstep::inline internal
