#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/remote/host_list.h"

namespace lockstep::inline internal {

/// How what was asked of a machine came to its end.
struct HostEnd {
  enum class Kind {
    kEnded,     ///< it has ended there, with a status
    kNotBegun,  ///< the machine, or `lockstep` on it, could not be reached: `reason`
    kLost,      ///< the connection ended first: `reason`
    kStopped,   ///< it was given up from here
  };
  Kind kind = Kind::kStopped;
  int status = 0;
  std::string reason{};
  bool operator==(const HostEnd&) const = default;
};

/// What ssh's end means for a machine where nothing had begun. `words`: the last that was said.
HostEnd why_not_begun(int ssh_status, const std::string& words, const std::string& lockstep);

/// The exit code of a job from the ends of its machines, in the order in which they came.
/// `stop_signal`: the signal that this machine was told to stop by.
int job_status(const std::vector<HostEnd>& ends, std::optional<int> stop_signal);

/// As a line of an agent's own comes through: marked with its machine. Those of workers are left as
/// they are.
std::string marked_line(const RemoteHost& host, const std::string& line);

}  // namespace lockstep::inline internal
