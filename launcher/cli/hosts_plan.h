#pragma once

#include <string>
#include <vector>

#include "launcher/cli/run_flags.h"
#include "launcher/remote/host_list.h"
#include "launcher/remote/overseer.h"

namespace lockstep::inline internal {

/// Inputs of --hosts besides the flags.
struct HostsFacts {
  /// The job's secret.
  std::string secret{};
  /// Working directory of the command, and so of all launchers.
  std::string directory{};
  /// The environment, NAME=value each.
  std::vector<std::string> environment{};
  /// Path of this program.
  std::string lockstep{};
  /// Port of the rendezvous on the first machine, unless the flags give one.
  int port = 0;
  /// Marks the lines in which a machine reports about its launcher, to distinguish them from
  /// output.
  std::string marker{};
  /// Timeout after which a machine that receives nothing ends its launcher.
  std::chrono::milliseconds silence = kLongestSilence;
  /// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or empty.
  std::string shutdown_timeout{};
};

/// Plans the command of each host: the same command line, with the host's node rank.
/// Errors: UsageError, also for what a machine would refuse.
OverseeOptions plan_hosts(const RunFlags& flags, const std::vector<RemoteHost>& hosts,
                          const HostsFacts& facts);

/// The variables of an environment that every machine gets: Lockstep's, without variables that
/// belong to one process or machine.
std::vector<std::string> variables_for_hosts(const std::vector<std::string>& environment);

/// The words that call `ssh`: --ssh-command, or the default.
std::vector<std::string> ssh_words(const std::string& ssh_command);

/// Errors: UsageError for a flag that has no effect without --hosts.
void check_no_hosts_flags(const RunFlags& flags);

}  // namespace lockstep::inline internal
