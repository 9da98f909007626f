#include "launcher/agents/elected_rendezvous.h"

#include <algorithm>

#include <sys/socket.h>

#include "launcher/agents/agent_messages.h"
#include "launcher/agents/event_loop.h"
#include "launcher/agents/json_members.h"
#include "launcher/job/console.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {

using std::chrono::ceil;
using std::chrono::seconds;

namespace {

// Short, so that the job is soon led again; a leader that is deposed loses nothing by it.
seconds lease_of(const RendezvousTimeouts& timeouts) {
  constexpr seconds kShortest{2};
  constexpr seconds kLongest{5};
  return std::clamp(ceil<seconds>(timeouts.keep_alive_limit / 3), kShortest, kLongest);
}

std::string address_of(const RendezvousOptions& options) {
  return options.own_address.empty() ? local_address_towards(options.etcd.front().host)
                                     : options.own_address;
}

}  // namespace

ElectedRendezvous::ElectedRendezvous(boost::asio::io_context& io, const LaunchOptions& options,
                                     const RendezvousRules& rules)
    : io_(io),
      options_(options),
      rules_(rules),
      secret_(options.run_id, options.rendezvous.secret),
      own_address_(address_of(options.rendezvous)),
      election_(io_,
                {.addresses = options.rendezvous.etcd,
                 .keys = etcd::keys_of(options.rendezvous.etcd_prefix, options.run_id),
                 .lease = lease_of(options.rendezvous.timeouts),
                 .state_lease = ceil<seconds>(2 * options.rendezvous.timeouts.keep_alive_limit)},
                {.make_record = [this] { return make_record(); },
                 .on_leader = [this](const std::string& record) { follow(record); },
                 .on_won = [this](const auto& state) { lead(state); },
                 .on_deposed = [this](const std::string& reason) { step_down(reason); }}),
      contact_(options.rendezvous.timeouts, Deadline::Clock::now()) {
  election_.search();
}

std::string ElectedRendezvous::where() const {
  return concat("the rendezvous of job '", options_.run_id, "'");
}

std::string ElectedRendezvous::make_record() {
  listening_ = bind_tcp_for_peers(own_address_, 0);
  return text_of(
      {{"id", report_.node.id}, {"host", own_address_}, {"port", bound_port(listening_.get())}});
}

void ElectedRendezvous::follow(const std::string& record) {
  const auto object = nlohmann::json::parse(record, nullptr, false);
  Members members(object);
  const std::string id = members.text("id");
  const std::string host = members.text("host");
  const std::uint16_t port = members.port("port");
  if (!members.good()) return;  // There will be another.
  leader_id_ = id;
  client_ = std::make_unique<ControlClient>(
      io_, ControlClient::Settings{
               .job = options_.run_id,
               .secret = options_.rendezvous.secret,
               .host = host,
               .port = port,
               .keep_alive_interval = options_.rendezvous.timeouts.keep_alive_interval});
  client_->report(report_);
}

// Only what an agent of the job has written.
std::optional<RendezvousState> ElectedRendezvous::state_in(const std::string& saved) const {
  const std::string proof = saved.substr(0, saved.find(' '));
  const std::string text = saved.substr(std::min(saved.size(), proof.size() + 1));
  if (!JobSecret::same_proof(proof, secret_.proof_of(text))) return std::nullopt;
  auto state = decode_state(text);
  // The end of a job that was there before under the same name.
  if (state && state->ended() && !contains_node(state->nodes, report_.node.id)) return std::nullopt;
  return state;
}

void ElectedRendezvous::lead(const std::optional<std::string>& saved) {
  const Instant now = Deadline::Clock::now();
  const auto state = saved ? state_in(*saved) : std::nullopt;
  constexpr int kBacklog = 512;
  if (::listen(listening_.get(), kBacklog) != 0) return election_.resign(false);
  if (state) say(concat("now serves ", where()));
  // Generations go on even where what was saved is lost.
  RendezvousState fresh;
  fresh.generation = report_.generation;
  served_ = std::make_unique<Served>(
      Served{.service = {rules_, options_.rendezvous.timeouts, state.value_or(fresh)}});
  served_->service.await_nodes(now);
  // The leader before has been silent for as long as its lease ran. Where its process is gone, it
  // is lost as any agent is whose connection closes.
  served_->service.silent_since(leader_id_, now - lease_of(options_.rendezvous.timeouts));
  if (client_ && client_->is_gone()) served_->service.closed(leader_id_, now);
  client_.reset();
  served_->server = std::make_unique<ControlServer>(
      io_, served_->service,
      ControlServer::Settings{.job = options_.run_id,
                              .secret = options_.rendezvous.secret,
                              .may_tell = [this] { return may_tell(); }},
      std::move(listening_));
  save();
  served_->service.report(report_, now);
}

void ElectedRendezvous::step_down(const std::string& reason) {
  say(concat("no longer serves ", where(), ": ", reason));
  served_.reset();
  leader_id_.clear();
  election_.search();
}

// Not before it is saved, so that whoever leads next knows what agents know.
bool ElectedRendezvous::may_tell() {
  if (served_->saved == version_of(served_->service.state())) return true;
  save();
  return false;
}

void ElectedRendezvous::save() {
  const RendezvousVersion version = version_of(served_->service.state());
  if (served_->being_saved == version) return;
  served_->being_saved = version;
  const std::string text = encode(served_->service.state());
  election_.save(concat(secret_.proof_of(text), " ", text), [this, version] {
    if (!leads()) return;
    served_->saved = version;
    serve();
  });
}

void ElectedRendezvous::serve() {
  if (!leads()) return;
  served_->server->send_views();
  look();
}

void ElectedRendezvous::look() {
  const Instant now = Deadline::Clock::now();
  if (leads()) {
    contact_.note(now);
    if (may_tell()) view_ = served_->service.view(report_.node.id);
    return;
  }
  if (client_ && client_->last_contact()) {
    contact_.note(std::max(*client_->last_contact(), contact_.last().value_or(Instant::min())));
  }
  const bool is_told = client_ && client_->told();
  const auto told = is_told ? std::optional(client_->told()->view) : std::nullopt;
  view_ = contact_.view(view_, told, now, [&] {
    return concat("no contact with ", where(), ": ", why_not_reached());
  });
  if (is_connected()) return election_.rest();
  election_.search();
}

void ElectedRendezvous::report(const AgentReport& report) {
  report_ = report;
  if (leads()) {
    served_->service.report(report, Deadline::Clock::now());
    serve();
  } else if (client_) {
    client_->report(report);
  }
}

bool ElectedRendezvous::is_connected() const {
  return client_ && client_->trouble().empty();
}

std::string ElectedRendezvous::trouble() const {
  return leads() || is_connected() ? ""
                                   : concat(where(), " cannot be reached: ", why_not_reached());
}

std::string ElectedRendezvous::why_not_reached() const {
  if (!election_.trouble().empty()) return election_.trouble();
  if (!client_) return "no machine serves it yet";
  return concat("the machine that serves it does not answer (", client_->trouble(), ")");
}

std::string ElectedRendezvous::missing() const {
  if (leads()) return served_->service.missing(Deadline::Clock::now());
  if (is_connected()) return client_->told() ? client_->told()->missing : "";
  return concat(why_not_reached(), "; ", contact_.timeout_text(Deadline::Clock::now()));
}

void ElectedRendezvous::wait(int wake_fd, const std::optional<Deadline>& deadline) {
  const AgentView before = view_;
  const bool was_reached = is_reached();
  const Instant now = Deadline::Clock::now();
  Instant wake_at = contact_.next_change(now);
  if (leads()) {
    wake_at = now + options_.rendezvous.timeouts.keep_alive_interval;
    if (const auto event = served_->service.next_event()) wake_at = std::min(wake_at, *event);
  }
  if (deadline) wake_at = std::min(wake_at, deadline->instant());
  const bool led = leads();
  run_until(io_, wake_fd, Deadline(wake_at), [&] {
    look();
    return !(view_ == before) || is_reached() != was_reached || leads() != led ||
           (client_ && !client_->refusal().empty());
  });
  if (leads()) {
    const Instant after = Deadline::Clock::now();
    // This agent is there as long as it looks.
    if (report_.status != AgentReport::Status::kLeaving) served_->service.report(report_, after);
    served_->service.tick(after);
    serve();
  }
  look();
  if (client_ && !client_->refusal().empty()) {
    throw Error(concat(where(), " refused this machine: ", client_->refusal()));
  }
  if (contact_.patience_ends() <= Deadline::Clock::now() && !view_.ended()) {
    throw TimeoutError(concat(where(), " cannot be reached: ", why_not_reached(),
                              "; check --rdzv-endpoint, and that etcd runs there"));
  }
}

void ElectedRendezvous::finish(const Deadline& deadline) {
  // There may be nobody to hear it just now.
  const Instant led_again =
      Deadline::Clock::now() + lease_of(options_.rendezvous.timeouts) + seconds(3);
  run_until(io_, -1, Deadline(std::min(deadline.instant(), led_again)), [&] {
    look();
    return leads() || (client_ && (client_->is_acknowledged() || !client_->refusal().empty()));
  });
  if (!leads()) return;
  const RendezvousState& state = served_->service.state();
  const bool nobody_is_left =
      state.nodes.empty() && state.waiting.empty() && state.expected.empty();
  const bool job_ended = state.ended() || nobody_is_left;
  served_->server->stop_listening();
  run_until(io_, -1, deadline, [&] {
    if (!leads()) return true;
    served_->server->send_views();
    return may_tell() && (!job_ended || served_->server->agent_count() == 0);
  });
  election_.resign(job_ended);
  run_until(io_, -1, deadline, [&] { return election_.is_idle(); });
}

}  // namespace lockstep::inline internal
