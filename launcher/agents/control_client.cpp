#include "launcher/agents/control_client.h"

#include <algorithm>

#include <boost/asio/connect.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/stream.hpp>

#include "launcher/agents/handshake.h"
#include "launcher/agents/sealed_connection.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using std::chrono::milliseconds;

// On the way to a connection.
struct ControlClient::Attempt {
  explicit Attempt(asio::io_context& io) : socket(io), nonce(random_nonce()) {}

  WebSocket socket;
  const Nonce nonce;
  websocket::response_type response;

  beast::tcp_stream& stream() { return beast::get_lowest_layer(socket); }
};

ControlClient::ControlClient(asio::io_context& io, Settings settings)
    : io_(io),
      settings_(std::move(settings)),
      secret_(settings_.job, settings_.secret),
      retry_(io),
      keep_alive_(io) {
  connect();
}

ControlClient::~ControlClient() {
  if (attempt_) attempt_->stream().close();
  if (connection_) connection_->close();
}

void ControlClient::connect() {
  if (addresses_.empty()) {
    error_code error;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(settings_.host, std::to_string(settings_.port), error);
    if (error) return try_later(concat("host '", settings_.host, "': ", error.message()));
    for (const auto& entry : found) addresses_.push_back(entry.endpoint());
  }
  attempt_ = std::make_shared<Attempt>(io_);
  attempt_->stream().expires_after(std::min(settings_.connect_timeout, answer_timeout()));
  attempt_->stream().async_connect(
      addresses_, [this, alive = std::weak_ptr(alive_), attempt = attempt_](error_code error,
                                                                            const tcp::endpoint&) {
        if (alive.expired() || attempt != attempt_) return;
        is_gone_ = error == asio::error::connection_refused;
        if (error) return fail(attempt, error.message());
        shake_hands(attempt);
      });
}

void ControlClient::shake_hands(const std::shared_ptr<Attempt>& attempt) {
  keep_from_workers(attempt->stream().socket());
  error_code ignored;
  own_address_ = attempt->stream().socket().local_endpoint(ignored).address().to_string();
  attempt->socket.set_option(websocket::stream_base::decorator(
      [this, raw = attempt.get()](websocket::request_type& request) {
        request.set(handshake::kJob, handshake::job_name(settings_.job));
        request.set(handshake::kNonce, hex_of(raw->nonce));
        request.set(handshake::kProof, secret_.client_proof(raw->nonce));
      }));
  attempt->socket.async_handshake(attempt->response, concat(settings_.host, ":", settings_.port),
                                  handshake::kTarget,
                                  [this, alive = std::weak_ptr(alive_), attempt](error_code error) {
                                    if (alive.expired() || attempt != attempt_) return;
                                    judge(attempt, error);
                                  });
}

void ControlClient::judge(const std::shared_ptr<Attempt>& attempt, error_code error) {
  if (error == websocket::error::upgrade_declined) {
    const std::string reason(attempt->response[handshake::kRefusal]);
    refusal_ = reason.empty() ? "another program listens there" : reason;
    return fail(attempt, refusal_);
  }
  if (error) return fail(attempt, error.message());
  const auto server = nonce_of(std::string(attempt->response[handshake::kNonce]));
  const std::string proof(attempt->response[handshake::kProof]);
  if (!server || !JobSecret::same_proof(proof, secret_.server_proof(attempt->nonce, *server))) {
    refusal_ = "the server there does not have the job's secret";
    return fail(attempt, refusal_);
  }
  attempt->stream().expires_never();
  limit(attempt->socket);
  connection_ = std::make_shared<SealedConnection>(std::move(attempt->socket),
                                                   secret_.key_to_server(attempt->nonce, *server),
                                                   secret_.key_to_client(attempt->nonce, *server));
  attempt_.reset();
  connection_->start({.on_message = [this](const std::string& text) { take(text); },
                      .on_closed =
                          [this](const std::string& reason) {
                            connection_.reset();
                            try_later(reason);
                          }});
  trouble_.clear();
  if (number_ > 0) send();
}

void ControlClient::fail(const std::shared_ptr<Attempt>& attempt, const std::string& reason) {
  attempt->stream().close();
  attempt_.reset();
  try_later(reason);
}

void ControlClient::try_later(const std::string& reason) {
  constexpr milliseconds kRetryAfter{100};
  trouble_ = reason;
  unanswered_since_.reset();
  keep_alive_.cancel();
  if (!refusal_.empty()) return;
  retry_.expires_after(kRetryAfter);
  retry_.async_wait([this, alive = std::weak_ptr(alive_)](error_code error) {
    if (!error && !alive.expired()) connect();
  });
}

void ControlClient::take(const std::string& text) {
  const auto message = decode_service_message(text);
  if (!message) {
    connection_->close();
    connection_.reset();
    return try_later("received an invalid message from the rendezvous");
  }
  last_contact_ = Clock::now();
  unanswered_since_.reset();
  if (!message->refusal.empty()) {
    refusal_ = message->refusal;
    connection_->close();
    connection_.reset();
    return try_later(refusal_);
  }
  told_ = message;
}

void ControlClient::report(const AgentReport& report) {
  report_ = report;
  ++number_;
  if (connection_) send();
}

void ControlClient::send() {
  connection_->send(encode(AgentMessage{.number = number_, .report = report_}));
  if (!unanswered_since_) unanswered_since_ = Clock::now();
  send_again_later();
}

milliseconds ControlClient::answer_timeout() const {
  return std::max(settings_.keep_alive_interval, settings_.shortest_timeout);
}

void ControlClient::send_again_later() {
  keep_alive_.expires_after(settings_.keep_alive_interval);
  keep_alive_.async_wait([this, alive = std::weak_ptr(alive_)](error_code error) {
    if (error || alive.expired() || !connection_) return;
    const bool is_silent =
        unanswered_since_ && Clock::now() - *unanswered_since_ >= answer_timeout();
    if (!is_silent) return send();
    // The network may be there again long before the transport, whose attempts become ever rarer,
    // finds out.
    connection_->close();
    connection_.reset();
    try_later("no answer");
  });
}

}  // namespace lockstep::inline internal
