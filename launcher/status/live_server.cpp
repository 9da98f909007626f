#include "launcher/status/live_server.h"

#include <array>

#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fcntl.h>

#include "launcher/agents/http_message.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr std::uint32_t kMostHeaderBytes = 4'096;
constexpr std::uint32_t kMostBodyBytes = 1'024;

}  // namespace

struct LiveServer::Connection {
  explicit Connection(Protocol::socket connected) : stream(std::move(connected)) {
    parser.header_limit(kMostHeaderBytes);
    parser.body_limit(kMostBodyBytes);
  }

  beast::basic_stream<Protocol> stream;
  beast::flat_buffer received{kMostHeaderBytes + kMostBodyBytes};
  http::request_parser<http::string_body> parser;
  std::string response;
  /// For what comes after the request, which nobody reads.
  std::array<char, 512> rest{};
};

LiveServer::LiveServer(asio::io_context& io, UniqueFd listening, Handler handler, Limits limits)
    : handler_(std::move(handler)),
      limits_(limits),
      accept_loop_(io, [this](Protocol::socket socket) { take(std::move(socket)); }) {
  const Protocol protocol(family_of(listening), 0);
  accept_loop_.start(protocol, std::move(listening));
}

LiveServer::~LiveServer() {
  for (const auto& connection : connections_) connection->stream.close();
}

void LiveServer::take(Protocol::socket socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  if (connections_.size() >= limits_.most_connections) forget(connections_.front());
  const auto connection = std::make_shared<Connection>(std::move(socket));
  connections_.push_back(connection);
  connection->stream.expires_after(limits_.timeout);
  http::async_read(
      connection->stream, connection->received, connection->parser,
      [this, alive = std::weak_ptr(alive_), connection](error_code error, std::size_t) {
        if (alive.expired() || error == asio::error::operation_aborted) return;
        if (error) return forget(connection);
        answer(connection);
      });
}

// Nothing that goes wrong with an answer may end the agent, in whose loop this runs.
LiveAnswer LiveServer::answer_of(const LiveRequest& request) const {
  try {
    return handler_(request);
  } catch (const std::exception& error) {
    return {.status = 500, .body = concat(error.what(), "\n")};
  }
}

void LiveServer::answer(const std::shared_ptr<Connection>& connection) {
  const auto& request = connection->parser.get();
  const LiveAnswer answer = answer_of({.method = std::string(request.method_string()),
                                       .target = std::string(request.target()),
                                       .body = request.body()});
  connection->response = http_response(
      answer.status, {{"Content-Type", answer.content_type}, {"Cache-Control", "no-store"}},
      answer.body);
  connection->stream.expires_after(limits_.timeout);
  asio::async_write(
      connection->stream, asio::buffer(connection->response),
      [this, alive = std::weak_ptr(alive_), connection](error_code error, std::size_t) {
        if (alive.expired() || error == asio::error::operation_aborted) return;
        if (error) return forget(connection);
        end(connection);
      });
}

// A connection that is closed while something of the request is unread is reset, and the answer may
// be thrown away: the client's end comes first, or the end of its time.
void LiveServer::end(const std::shared_ptr<Connection>& connection) {
  error_code ignored;
  connection->stream.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  pass_over_rest(connection);
}

void LiveServer::pass_over_rest(const std::shared_ptr<Connection>& connection) {
  connection->stream.async_read_some(
      asio::buffer(connection->rest),
      [this, alive = std::weak_ptr(alive_), connection](error_code error, std::size_t) {
        if (alive.expired() || error == asio::error::operation_aborted) return;
        error ? forget(connection) : pass_over_rest(connection);
      });
}

void LiveServer::forget(const std::shared_ptr<Connection>& connection) {
  const std::shared_ptr<Connection> kept = connection;  // It may be the list's own.
  kept->stream.close();
  connections_.remove(kept);
}

}  // namespace lockstep::inline internal
