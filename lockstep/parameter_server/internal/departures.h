#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server::inline internal {

/// Hears of the end of each other process's part: of a good one (ServedCalls::leave) when somebody
/// looks, of a bad one at once. Threads: one. Lifetime: the rpc session's.
class Departures {
 public:
  Departures();

  /// Whether it has left; this process has, for itself. Errors: PeerLost for one that is gone
  /// without.
  bool has_left(int rank);
  /// Errors: PeerLost for the first that is gone.
  void check();
  /// Returns at the next news, or after some milliseconds.
  void wait_for_news();
  /// Waits until all of them have left; calls `while_waiting` again and again, and says every
  /// `say_every` who is waited for, who must then say that they live. Errors: PeerLost for any that
  /// is gone; TimeoutError naming one that is stuck or stopped.
  void wait_for(const std::vector<int>& ranks, std::chrono::milliseconds say_every,
                const std::function<void()>& while_waiting);

 private:
  struct News;
  void ask(int rank);

  const std::shared_ptr<News> news_;
  std::vector<std::optional<rpc::Future<void>>> stays_;  ///< by rank; none of this process
};

}  // namespace lockstep::parameter_server::inline internal
