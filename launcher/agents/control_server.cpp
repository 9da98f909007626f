#include "launcher/agents/control_server.h"

#include <algorithm>

#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <unistd.h>

#include "launcher/agents/handshake.h"
#include "launcher/agents/http_message.h"
#include "launcher/agents/sealed_connection.h"
#include "launcher/job/console.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using boost::system::error_code;
using tcp = asio::ip::tcp;

namespace {

constexpr std::uint32_t kMostGreetingBytes = 4'096;

std::string name_of(const tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "?" : endpoint.address().to_string();
}

}  // namespace

// Has yet to show the secret.
struct ControlServer::PendingClient {
  explicit PendingClient(tcp::socket connected)
      : peer(name_of(connected)), socket(std::move(connected)) {
    parser.header_limit(kMostGreetingBytes);
    parser.body_limit(0);
  }

  const std::string peer;
  WebSocket socket;
  beast::flat_buffer received{kMostGreetingBytes};
  http::request_parser<http::empty_body> parser;
  std::string response;
  std::string server_nonce;
  std::string server_proof;

  beast::tcp_stream& stream() { return beast::get_lowest_layer(socket); }
};

// Has shown it.
struct ControlServer::Agent {
  Agent(asio::io_context& io, std::string peer_name)
      : peer(std::move(peer_name)), first_report_due(io) {}

  const std::string peer;
  asio::steady_timer first_report_due;
  std::shared_ptr<SealedConnection> connection{};
  std::string id{};  ///< empty until it has reported
  bool is_refused = false;
  bool is_owed = false;  ///< an answer
  std::uint64_t number = 0;
  AgentView told{};
};

ControlServer::ControlServer(asio::io_context& io, RendezvousService& service, Settings settings,
                             UniqueFd listening)
    : io_(io),
      service_(service),
      settings_(std::move(settings)),
      secret_(settings_.job, settings_.secret),
      accept_loop_(io, [this](tcp::socket socket) { take(std::move(socket)); }) {
  const tcp protocol = family_of(listening) == AF_INET6 ? tcp::v6() : tcp::v4();
  accept_loop_.start(protocol, std::move(listening));
}

ControlServer::~ControlServer() {
  for (const auto& [key, agent] : agents_) agent->connection->close();
  for (const auto& newcomer : newcomers_) newcomer->connection->close();
  for (const auto& stranger : strangers_) stranger->stream().close();
}

void ControlServer::take(tcp::socket socket) {
  keep_from_workers(socket);
  if (strangers_.size() >= settings_.most_strangers) {
    note_refusal(strangers_.front()->peer, "too many connections without the job's secret");
    forget(strangers_.front());
  }
  strangers_.push_back(std::make_shared<PendingClient>(std::move(socket)));
  greet(strangers_.back());
}

void ControlServer::greet(const std::shared_ptr<PendingClient>& stranger) {
  stranger->stream().expires_after(settings_.handshake_timeout);
  http::async_read(stranger->stream(), stranger->received, stranger->parser,
                   [this, alive = std::weak_ptr(alive_), stranger](error_code error, std::size_t) {
                     if (alive.expired()) return;
                     if (std::ranges::find(strangers_, stranger) == strangers_.end()) return;
                     if (error) return forget(stranger);
                     judge(stranger);
                   });
}

std::string ControlServer::who_meets() const {
  return concat(handshake::kAgentsOf, settings_.job, "' of ", host_name(), " (pid ", ::getpid(),
                ")");
}

void ControlServer::judge(const std::shared_ptr<PendingClient>& stranger) {
  const auto& request = stranger->parser.get();
  if (!websocket::is_upgrade(request)) {
    return answer(stranger, 404, who_meets());
  }
  const auto refuse_stranger = [&](const std::string& reason) {
    note_refusal(stranger->peer, reason);
    answer(stranger, 403, reason);
  };
  const std::string job(request[handshake::kJob]);
  if (job != handshake::job_name(settings_.job)) {
    return refuse_stranger(concat("this rendezvous serves ", who_meets(),
                                  "; set --rdzv-id to that job, or choose another port"));
  }
  const auto nonce = nonce_of(std::string(request[handshake::kNonce]));
  const std::string proof(request[handshake::kProof]);
  if (!nonce || !JobSecret::same_proof(proof, secret_.client_proof(*nonce))) {
    return refuse_stranger("wrong job secret");
  }
  if (agents_.size() >= settings_.most_agents) return refuse_stranger("too many agents");
  admit(stranger, *nonce, random_nonce());
}

void ControlServer::admit(const std::shared_ptr<PendingClient>& stranger, const Nonce& client,
                          const Nonce& server) {
  stranger->server_nonce = hex_of(server);
  stranger->server_proof = secret_.server_proof(client, server);
  stranger->socket.set_option(
      websocket::stream_base::decorator([raw = stranger.get()](websocket::response_type& response) {
        response.set(handshake::kNonce, raw->server_nonce);
        response.set(handshake::kProof, raw->server_proof);
      }));
  stranger->socket.async_accept(stranger->parser.get(), [this, alive = std::weak_ptr(alive_),
                                                         stranger, client,
                                                         server](error_code error) {
    if (alive.expired()) return;
    if (std::ranges::find(strangers_, stranger) == strangers_.end()) return;
    if (error) return forget(stranger);
    strangers_.remove(stranger);
    stranger->stream().expires_never();
    limit(stranger->socket);
    const auto agent = std::make_shared<Agent>(io_, stranger->peer);
    agent->connection = std::make_shared<SealedConnection>(std::move(stranger->socket),
                                                           secret_.key_to_client(client, server),
                                                           secret_.key_to_server(client, server));
    await_first_report(agent);
    agent->connection->start(
        {.on_message = [this,
                        raw = agent.get()](const std::string& text) { take_report(*raw, text); },
         .on_closed =
             [this, raw = agent.get()](const std::string& reason) {
               if (raw->id.empty() && !raw->is_refused) note_refusal(raw->peer, reason);
               drop(*raw);
             }});
  });
}

void ControlServer::await_first_report(const std::shared_ptr<Agent>& agent) {
  if (newcomers_.size() >= settings_.most_strangers) {
    note_refusal(newcomers_.front()->peer, "too many connections without a report");
    drop(*newcomers_.front());
  }
  newcomers_.push_back(agent);
  agent->first_report_due.expires_after(settings_.handshake_timeout);
  agent->first_report_due.async_wait(
      [this, alive = std::weak_ptr(alive_), agent](error_code stopped) {
        if (stopped || alive.expired() || std::ranges::find(newcomers_, agent) == newcomers_.end())
          return;
        if (!agent->is_refused) note_refusal(agent->peer, "no report after the handshake");
        drop(*agent);
      });
}

void ControlServer::answer(const std::shared_ptr<PendingClient>& stranger, unsigned status,
                           const std::string& text) {
  stranger->response = http_response(
      status, {{handshake::kRefusal, handshake::one_line(text)}, {"Content-Type", "text/plain"}},
      text + "\n");
  asio::async_write(stranger->stream(), asio::buffer(stranger->response),
                    [this, alive = std::weak_ptr(alive_), stranger](error_code, std::size_t) {
                      if (!alive.expired()) forget(stranger);
                    });
}

void ControlServer::forget(const std::shared_ptr<PendingClient>& stranger) {
  const std::shared_ptr<PendingClient> kept = stranger;  // It may be the list's own.
  kept->stream().close();
  strangers_.remove(kept);
}

void ControlServer::take_report(Agent& agent, const std::string& text) {
  const auto message = decode_agent_message(text);
  if (!message) return refuse(agent, "invalid message from the launcher");
  const RendezvousNode& node = message->report.node;
  if (!agent.id.empty() && agent.id != node.id)
    return refuse(agent, "a second launcher on one connection");
  const std::string objection = service_.objection(node);
  if (!objection.empty()) return refuse(agent, objection);
  if (agent.id.empty()) {
    const std::string warning = service_.warning(node);
    if (!warning.empty()) say(warning);
    take_in(agent, node.id);
  }
  agent.number = message->number;
  service_.report(message->report, Deadline::Clock::now());
  tell(agent);
  send_views();
}

void ControlServer::take_in(Agent& agent, const std::string& id) {
  // It may have a new connection in place of one that had fallen silent.
  std::erase_if(agents_, [&](const auto& entry) {
    if (entry.second->id != id) return false;
    entry.second->connection->close();
    return true;
  });
  const auto found = std::ranges::find(newcomers_, &agent, &std::shared_ptr<Agent>::get);
  agent.id = id;
  agent.first_report_due.cancel();
  agents_.emplace(&agent, *found);
  newcomers_.erase(found);
}

void ControlServer::refuse(Agent& agent, const std::string& reason) {
  note_refusal(agent.peer, reason);
  agent.is_refused = true;
  agent.connection->send(encode(ServiceMessage{.refusal = reason}));
  agent.connection->close_when_sent();
}

void ControlServer::drop(Agent& agent) {
  const std::string id = agent.id;
  agent.connection->close();
  agent.first_report_due.cancel();
  std::erase_if(newcomers_, [&](const auto& newcomer) { return newcomer.get() == &agent; });
  if (agents_.erase(&agent) == 0) return;
  service_.closed(id, Deadline::Clock::now());
}

void ControlServer::tell(Agent& agent) {
  agent.is_owed = !settings_.may_tell();
  if (agent.is_owed) {
    owes_answers_ = true;
    return;
  }
  agent.told = service_.view(agent.id);
  agent.connection->send(
      encode(ServiceMessage{.number = agent.number,
                            .view = agent.told,
                            .missing = service_.missing(Deadline::Clock::now())}));
}

void ControlServer::send_views() {
  if (!settings_.may_tell()) return;
  // What concerns one agent alone, it is told in answer.
  const RendezvousVersion now = version_of(service_.state());
  const bool is_new = !(now == told_);
  told_ = now;
  if (!is_new && !owes_answers_) return;
  owes_answers_ = false;
  for (const auto& [key, agent] : agents_) {
    if (agent->is_owed || (is_new && !(service_.view(agent->id) == agent->told))) tell(*agent);
  }
}

void ControlServer::note_refusal(const std::string& peer, const std::string& reason) {
  // Each of the first, then few: whoever knocks must not fill the log.
  constexpr std::uint64_t kFirst = 10;
  constexpr std::uint64_t kEvery = 1'000;
  ++refusals_;
  if (refusals_ <= kFirst || refusals_ % kEvery == 0) {
    say(concat("refused ", peer, ": ", reason, " (refusal ", refusals_, ")"));
  }
}

}  // namespace lockstep::inline internal
