#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/child_process.h"

/// A fork server: a process that the first worker of a program leaves behind before its main(),
/// when the program and its libraries are loaded. Further workers are forked from it. They load
/// nothing, and share the memory that the dynamic linker has written. (Loading LibTorch takes
/// 0.17 s and 30 MB of each process.)
///
/// The server has one thread, no open file but its socket, and a session of its own. It never runs
/// a line of the program. It ends with the launcher.
namespace lockstep::inline internal {

/// For a launcher: the fork server of a program.
/// Lifetime: the destructor kills the server. Workers that it started live on.
/// Threads: as spawn_process().
class ForkServer {
 public:
  /// Whether the executable leaves a server when it is asked to, which its file says.
  static bool is_in(const std::string& path);

  /// Adds to the options of the first worker what makes it leave a server. `is_of_one_worker`: for
  /// a line NAME=value of the environment, whether workers may differ in it: no library reads it
  /// while it is loaded. `time_to_load`: how long start() waits for the first worker to be loaded,
  /// once for all workers. Errors: SystemError.
  ForkServer(SpawnOptions& first, std::function<bool(std::string_view line)> is_of_one_worker,
             std::chrono::milliseconds time_to_load);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// The first worker has been executed: its end of the socket is its own.
  void started_first() { worker_end_.reset(); }

  /// Starts a process as spawn_process() does. Nothing where the server has ended, does not answer
  /// in time, or cannot start this one, as its arguments or its environment are others than the
  /// first worker's: then the program must be executed. It waits only until `news` is readable.
  std::optional<pid_t> start(const SpawnOptions& options, int news = -1);

  /// False when there will be no server any more.
  bool is_valid() const { return socket_.valid(); }

 private:
  bool can_start(const SpawnOptions& options) const;
  bool wait_until_ready(int news);
  void end() noexcept;

  SpawnOptions first_;
  std::function<bool(std::string_view)> is_of_one_worker_;
  UniqueFd socket_;
  UniqueFd worker_end_;
  UniqueFd process_;                        ///< not valid: it has not reported yet
  std::chrono::milliseconds time_to_load_;  ///< that is left
};

}  // namespace lockstep::inline internal
