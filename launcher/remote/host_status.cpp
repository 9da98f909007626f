#include "launcher/remote/host_status.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

HostEnd why_not_begun(int ssh_status, const std::string& words, const std::string& lockstep) {
  constexpr int kSshFailed = 255;
  constexpr int kNotFound = 127;
  constexpr int kNotExecutable = 126;
  HostEnd end{.kind = HostEnd::Kind::kNotBegun, .status = kExitFailure};
  if (ssh_status == kSshFailed) {
    end.reason = concat("cannot be reached: ", words.empty() ? "ssh does not say why" : words);
  } else if (ssh_status == kNotFound || ssh_status == kNotExecutable) {
    end.reason = concat("cannot execute ", lockstep, " there (", words,
                        "); install Lockstep there, at the same path or at one named by "
                        "--remote-lockstep=PATH");
  } else if (words.empty()) {
    end.reason = concat("cannot start lockstep there: exit code ", ssh_status);
  } else {
    constexpr std::string_view kOwn = "lockstep: ";
    end.reason = concat("cannot start lockstep there: ",
                        words.starts_with(kOwn) ? words.substr(kOwn.size()) : words);
  }
  return end;
}

int job_status(const std::vector<HostEnd>& ends, std::optional<int> stop_signal) {
  const HostEnd* first = nullptr;
  for (const HostEnd& end : ends) {
    // A launcher ends so only when all of the job have ended well.
    if (end.kind == HostEnd::Kind::kEnded && end.status == 0) return 0;
    if (first == nullptr && end.kind != HostEnd::Kind::kStopped) first = &end;
  }
  if (stop_signal) return 128 + *stop_signal;
  if (first == nullptr) return kExitFailure;
  return first->kind == HostEnd::Kind::kEnded ? first->status : kExitFailure;
}

std::string marked_line(const RemoteHost& host, const std::string& line) {
  return line.starts_with("lockstep: ") ? concat(host.name, ": ", line) : line;
}

}  // namespace lockstep::inline internal
