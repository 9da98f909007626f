#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parameter_server/internal/server.h"
#include "lockstep/rpc/rpc.h"

/// Functions that servers and trainers call on each other, by name.
namespace lockstep::parameter_server::inline internal {

inline constexpr const char* kPush = "lockstep.parameter_server.push";
inline constexpr const char* kPull = "lockstep.parameter_server.pull";
inline constexpr const char* kRows = "lockstep.parameter_server.rows";
inline constexpr const char* kFinish = "lockstep.parameter_server.finish";
inline constexpr const char* kLive = "lockstep.parameter_server.live";
inline constexpr const char* kStay = "lockstep.parameter_server.stay";

/// Timeout of calls whose reply depends on other processes. If the called process fails, they end
/// at once.
inline constexpr std::chrono::hours kAsLongAsItTakes{24 * 20};

/// Checks a process that has not replied to such a call for long.
/// Errors: TimeoutError that names a hung or stopped process, which does not reply to kLive either;
/// as rpc::call.
void expect_alive(int rank);

/// Registers these functions during its life, from rpc::init on.
class ServedCalls {
 public:
  /// `desk`: that of a server; null on a trainer.
  explicit ServedCalls(const std::shared_ptr<ParameterServer>& desk);
  ~ServedCalls();
  ServedCalls(const ServedCalls&) = delete;
  ServedCalls& operator=(const ServedCalls&) = delete;

  /// Replies to kStay, by which other processes learn that this one has ended or failed.
  void leave();

 private:
  std::vector<std::string> names_;
  ParameterServer::Later leaving_;
};

/// Tracks which processes have left (ServedCalls::leave) or failed. A failure is noticed at once.
/// Threads: one.
/// Lifetime: that of the rpc session.
class ProcessExits {
 public:
  ProcessExits();

  /// Whether a process has left; true for this process.
  /// Errors: PeerLost if it failed.
  bool has_left(int rank);
  /// Errors: PeerLost for the first failed process.
  void check();
  /// Returns at the next change, or after a few milliseconds.
  void wait_for_news();
  /// Waits until all of these processes have left. Calls `while_waiting` repeatedly. At each
  /// interval `log_interval` it logs which ranks it waits for, and checks that they are alive.
  /// Errors: PeerLost for a failed process; TimeoutError that names a hung or stopped one.
  void wait_for(const std::vector<int>& ranks, std::chrono::milliseconds log_interval,
                const std::function<void()>& while_waiting);

 private:
  struct News;
  void ask(int rank);

  const std::shared_ptr<News> news_;
  std::vector<std::optional<rpc::Future<void>>> stays_;  ///< by rank; unset for this process
};

}  // namespace lockstep::parameter_server::inline internal
