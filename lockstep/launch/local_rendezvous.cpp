#include "lockstep/launch/local_rendezvous.h"

#include <poll.h>

#include "lockstep/os/poll_timeout.h"

namespace lockstep {

RendezvousTimeouts LocalRendezvous::timeouts() {
  // The one agent is this process.
  return {.keep_alive_limit = std::chrono::hours(24 * 365 * 100)};
}

void LocalRendezvous::report(const AgentReport& report) {
  service_.report(report, Deadline::Clock::now());
  view_ = service_.view(report.node.id);
}

void LocalRendezvous::wait(int wake_fd, const std::optional<Deadline>& deadline) {
  pollfd ready{wake_fd, POLLIN, 0};
  ::poll(&ready, 1, deadline ? poll_timeout(*deadline) : -1);
}

}  // namespace lockstep
