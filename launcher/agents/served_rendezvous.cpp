#include "launcher/agents/served_rendezvous.h"

#include <algorithm>

#include "launcher/agents/event_loop.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {

ServedRendezvous::ServedRendezvous(boost::asio::io_context& io, const LaunchOptions& options,
                                   const RendezvousRules& rules, UniqueFd listening)
    : io_(io),
      timeouts_(options.rendezvous.timeouts),
      service_(rules, timeouts_),
      server_(io_, service_, {.job = options.run_id, .secret = options.rendezvous.secret},
              std::move(listening)),
      own_address_(options.rendezvous.own_address.empty()
                       ? local_address_towards(options.rendezvous.host)
                       : options.rendezvous.own_address) {}

void ServedRendezvous::look() {
  view_ = service_.view(report_.node.id);
}

void ServedRendezvous::report(const AgentReport& report) {
  report_ = report;
  if (report.status == AgentReport::Status::kLeaving) {
    // Without it there is no rendezvous.
    service_.end(
        concat("machine ", report.node.name, ", which serves the rendezvous, ", report.farewell));
  } else {
    service_.report(report, Deadline::Clock::now());
  }
  server_.send_views();
  look();
}

std::string ServedRendezvous::missing() const {
  return service_.missing(Deadline::Clock::now());
}

void ServedRendezvous::wait(int wake_fd, const std::optional<Deadline>& deadline) {
  const AgentView before = view_;
  const auto wake_at = [&] {
    Deadline::Clock::time_point next = Deadline::Clock::now() + timeouts_.keep_alive_interval;
    if (const auto event = service_.next_event()) next = std::min(next, *event);
    return deadline ? std::min(next, deadline->instant()) : next;
  };
  run_until(io_, wake_fd, Deadline(wake_at()), [&] {
    look();
    return !(view_ == before);
  });
  // This agent is there as long as it looks.
  if (report_.status != AgentReport::Status::kLeaving) {
    service_.report(report_, Deadline::Clock::now());
  }
  service_.tick(Deadline::Clock::now());
  server_.send_views();
  look();
}

void ServedRendezvous::finish(const Deadline& deadline) {
  server_.stop_listening();
  server_.send_views();
  run_until(io_, -1, deadline, [&] { return server_.agent_count() == 0; });
}

}  // namespace lockstep::inline internal
