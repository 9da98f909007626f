#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parameter_server/internal/server_desk.h"
#include "lockstep/rpc/rpc.h"

/// The functions that servers and trainers call on one another, by their names.
namespace lockstep::parameter_server::inline internal {

inline constexpr const char* kPush = "lockstep.parameter_server.push";
inline constexpr const char* kPull = "lockstep.parameter_server.pull";
inline constexpr const char* kRows = "lockstep.parameter_server.rows";
inline constexpr const char* kFinish = "lockstep.parameter_server.finish";
inline constexpr const char* kLive = "lockstep.parameter_server.live";
inline constexpr const char* kStay = "lockstep.parameter_server.stay";

/// Of calls that are answered when others have done their part. Whoever dies ends them at once.
inline constexpr std::chrono::hours kAsLongAsItTakes{24 * 20};

/// Of who has not answered such a call for long. Errors: TimeoutError naming one that is stuck or
/// stopped, as it does not even say that it lives; as rpc::call.
void expect_alive(int rank);

/// While it lives this process can be called by them, from rpc::init on.
class ServedCalls {
 public:
  /// `desk`: of a server; null on a trainer.
  explicit ServedCalls(const std::shared_ptr<ServerDesk>& desk);
  ~ServedCalls();
  ServedCalls(const ServedCalls&) = delete;
  ServedCalls& operator=(const ServedCalls&) = delete;

  /// Answers kStay, which others call to hear of this process's end, good or bad.
  void leave();

 private:
  std::vector<std::string> names_;
  ServerDesk::Later leaving_;
};

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
