#pragma once

#include <string>
#include <vector>

#include "launcher/cli/run_flags.h"
#include "launcher/remote/host_list.h"
#include "launcher/remote/overseer.h"

namespace lockstep::inline internal {

/// What the meaning of --hosts depends on beside the flags.
struct HostsFacts {
  /// Of the job.
  std::string secret{};
  /// Where the command runs, and so all launchers.
  std::string directory{};
  /// NAME=value each.
  std::vector<std::string> environment{};
  /// The path of this program.
  std::string lockstep{};
  /// Where the launchers meet on the first machine, unless the flags say so.
  int port = 0;
  /// By which what the machines say of the launchers is told from output.
  std::string marker{};
  /// After which the machines end a job of which they hear nothing.
  std::chrono::milliseconds silence = kLongestSilence;
  /// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or empty.
  std::string shutdown_timeout{};
};

/// What each of the hosts is asked to do: the same command line, with its place.
/// Errors: UsageError, also for what a machine would refuse.
OverseeOptions plan_hosts(const RunFlags& flags, const std::vector<RemoteHost>& hosts,
                          const HostsFacts& facts);

/// Of an environment, NAME=value each, what every machine gets: Lockstep's own, but for what
/// belongs to one place.
std::vector<std::string> variables_for_hosts(const std::vector<std::string>& environment);

/// How `ssh` is called, from --ssh-command or by default.
std::vector<std::string> ssh_words(const std::string& ssh_command);

/// Errors: UsageError when there is a flag that means nothing without --hosts.
void check_no_hosts_flags(const RunFlags& flags);

}  // namespace lockstep::inline internal
