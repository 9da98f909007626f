#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/remote/host_list.h"
#include "launcher/remote/host_session.h"
#include "launcher/remote/hosted_request.h"

namespace lockstep::inline internal {

/// One machine's part.
struct HostedCommand {
  RemoteHost host{};
  HostedRequest request{};
};

struct OverseeOptions {
  SshOptions ssh{};
  std::vector<HostedCommand> commands{};
  /// When fewer machines than these are there, all are stopped. 0: what one does is of no matter to
  /// the others.
  std::size_t least_hosts = 0;
  /// What they write to stdout is kept instead of shown.
  bool collects = false;
  /// How often they are told that this machine is there.
  std::chrono::milliseconds beat_interval{5'000};
  /// After which all are stopped.
  std::optional<std::chrono::milliseconds> time_limit{};
  /// How long they may take to end once they are told to.
  std::chrono::milliseconds patience{0};
};

struct Overseen {
  /// In the order in which they came; `host` is the place in `commands`.
  struct End {
    std::size_t host = 0;
    HostEnd end{};
  };
  std::vector<End> ends{};
  /// By place in `commands`.
  std::vector<std::string> collected{};
  /// What stopped it, here.
  std::optional<int> stop_signal{};
};

/// Asks other machines, all at once, to do something, shows what they say line by line, and returns
/// when all have ended. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to them. Why a machine is
/// not there is said. Whatever becomes of this process, they end what they do.
/// Threads: the main thread. Errors: Error when ssh cannot be started.
Overseen oversee(const OverseeOptions& options);

}  // namespace lockstep::inline internal
