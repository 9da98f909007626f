#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parameter_server/internal/server_desk.h"

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

}  // namespace lockstep::parameter_server::inline internal
