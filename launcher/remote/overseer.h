#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/remote/host_list.h"
#include "launcher/remote/host_session.h"
#include "launcher/remote/hosted_request.h"

namespace lockstep::inline internal {

/// The command for one machine.
struct HostedCommand {
  RemoteHost host{};
  HostedRequest request{};
};

/// Options of oversee().
struct OverseeOptions {
  SshOptions ssh{};
  std::vector<HostedCommand> commands{};
  /// If fewer machines run their command, all are stopped. 0: machines are independent.
  std::size_t least_hosts = 0;
  /// Return the standard output instead of showing it.
  bool collects = false;
  /// Interval between heartbeats to the machines.
  std::chrono::milliseconds heartbeat_interval{5'000};
  /// All are stopped after this time.
  std::optional<std::chrono::milliseconds> time_limit{};
  /// Time that stopped commands have to end.
  std::chrono::milliseconds patience{0};
};

/// Result of oversee().
struct Overseen {
  /// End of one command; `host` is its index in `commands`. In the order in which they ended.
  struct End {
    std::size_t host = 0;
    HostEnd end{};
  };
  std::vector<End> ends{};
  /// Standard output by index in `commands`.
  std::vector<std::string> collected{};
  /// Signal to this process that stopped the commands.
  std::optional<int> stop_signal{};
};

/// Runs commands on remote machines at the same time, shows their output line by line, and returns
/// when all have ended. Forwards SIGINT, SIGTERM, SIGHUP and SIGQUIT to them. Prints why a machine
/// could not be reached. If this process ends in any way, the machines end their commands.
/// Threads: the main thread.
/// Errors: Error if ssh cannot be started.
Overseen oversee(const OverseeOptions& options);

}  // namespace lockstep::inline internal
