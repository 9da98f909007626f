#include "launcher/agents/local_rendezvous.h"

#include "launcher/agents/event_loop.h"

namespace lockstep::inline internal {

RendezvousTimeouts LocalRendezvous::timeouts() {
  // The one agent is this process.
  return {.keep_alive_limit = std::chrono::hours(24 * 365 * 100)};
}

void LocalRendezvous::report(const AgentReport& report) {
  service_.report(report, Deadline::Clock::now());
  view_ = service_.view(report.node.id);
}

void LocalRendezvous::wait(int wake_fd, const std::optional<Deadline>& deadline) {
  const AgentView before = view_;
  run_until(io_, wake_fd, deadline, [&] { return !(view_ == before); });
}

}  // namespace lockstep::inline internal
