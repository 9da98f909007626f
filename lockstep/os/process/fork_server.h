#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/child_process.h"

/// A fork server: a process that a program's first worker forks before its main(), when the program
/// and its libraries are loaded. Further workers are forked from it: they load nothing, and share
/// the memory that the dynamic linker has written. (Loading LibTorch takes 0.17 s and 30 MB per
/// process.)
///
/// The server has one thread, its own session, and only its socket open. It never runs code of the
/// program. It ends with the launcher.
namespace lockstep::inline internal {

/// A launcher's access to the fork server of a program.
/// Threads: as spawn_process().
/// Lifetime: the destructor kills the server, not the workers that it started.
class ForkServer {
 public:
  /// Whether the executable can leave a fork server, from an ELF note in its file.
  static bool is_in(const std::string& path);

  /// Adds to the options of the first worker what makes it leave a server. `is_of_one_worker`:
  /// whether workers may differ in a line NAME=value of the environment, because no library reads
  /// it while it is loaded. `time_to_load`: how long all calls of start() together wait until the
  /// first worker is loaded.
  /// Errors: SystemError.
  ForkServer(SpawnOptions& first, std::function<bool(std::string_view line)> is_of_one_worker,
             std::chrono::milliseconds time_to_load);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// The first worker has been executed: closes the worker's end of the socket.
  void started_first() { worker_end_.reset(); }

  /// Starts a process like spawn_process(). Empty if the server has ended, does not answer in time,
  /// or cannot start this process because its arguments or environment differ from the first
  /// worker's: then execute the program. It stops waiting when `news` is readable.
  std::optional<pid_t> start(const SpawnOptions& options, int news = -1);

  /// False: there will be no server any more.
  bool is_valid() const { return socket_.valid(); }

 private:
  bool can_start(const SpawnOptions& options) const;
  bool wait_until_ready(int news);
  void end() noexcept;

  SpawnOptions first_;
  std::function<bool(std::string_view)> is_of_one_worker_;
  UniqueFd socket_;
  UniqueFd worker_end_;
  UniqueFd process_;                        ///< invalid: the server has not reported yet
  std::chrono::milliseconds time_to_load_;  ///< the rest of it
};

}  // namespace lockstep::inline internal
