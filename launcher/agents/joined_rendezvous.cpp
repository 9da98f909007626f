#include "launcher/agents/joined_rendezvous.h"

#include <algorithm>

#include "launcher/agents/event_loop.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;

JoinedRendezvous::JoinedRendezvous(asio::io_context& io, const LaunchOptions& options)
    : io_(io),
      options_(options.rendezvous),
      client_(io_, {.job = options.run_id,
                    .secret = options_.secret,
                    .host = options_.host,
                    .port = options_.port,
                    .keep_alive_interval = options_.timeouts.keep_alive_interval}),
      contact_(options_.timeouts, Deadline::Clock::now()) {}

std::string JoinedRendezvous::where() const {
  return concat("the rendezvous at ", options_.host, " port ", options_.port);
}

std::string JoinedRendezvous::trouble() const {
  const std::string trouble = client_.trouble();
  return trouble.empty() ? "" : concat(where(), " does not answer (", trouble, ")");
}

std::string JoinedRendezvous::own_address() const {
  if (!options_.own_address.empty()) return options_.own_address;
  return client_.own_address();
}

void JoinedRendezvous::report(const AgentReport& report) {
  client_.report(report);
}

void JoinedRendezvous::look() {
  if (client_.last_contact()) contact_.note(*client_.last_contact());
  const auto told = client_.told() ? std::optional(client_.told()->view) : std::nullopt;
  view_ = contact_.view(view_, told, Deadline::Clock::now(), [&] {
    return concat("no contact with ", where(), ": ", client_.trouble());
  });
}

std::string JoinedRendezvous::missing() const {
  const std::string trouble = client_.trouble();
  if (trouble.empty()) return client_.told() ? client_.told()->missing : "";
  return concat(where(), " does not answer (", trouble, "); ",
                contact_.timeout_text(Deadline::Clock::now()));
}

void JoinedRendezvous::wait(int wake_fd, const std::optional<Deadline>& deadline) {
  const AgentView before = view_;
  const bool was_reached = is_reached();
  const Contact::Instant now = Deadline::Clock::now();
  if (contact_.is_cut_off(now)) client_.look_host_up();
  Contact::Instant wake_at = contact_.next_change(now);
  if (deadline) wake_at = std::min(wake_at, deadline->instant());
  run_until(io_, wake_fd, Deadline(wake_at), [&] {
    look();
    return !(view_ == before) || is_reached() != was_reached || !client_.refusal().empty();
  });
  look();
  if (!client_.refusal().empty()) {
    throw Error(concat(where(), " refused this machine: ", client_.refusal()));
  }
  if (contact_.patience_ends() <= Deadline::Clock::now() && !view_.ended()) {
    throw TimeoutError(concat(where(), " does not answer (", client_.trouble(),
                              "): check the address, and that the agent there runs"));
  }
}

void JoinedRendezvous::finish(const Deadline& deadline) {
  run_until(io_, -1, deadline, [&] {
    return client_.is_acknowledged() || !client_.trouble().empty() || !client_.refusal().empty();
  });
}

}  // namespace lockstep::inline internal
