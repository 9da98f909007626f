#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/stream.hpp>

#include "launcher/agents/job_secret.h"

namespace lockstep::inline internal {

/// Without compression: what is encrypted does not compress.
using WebSocket = boost::beast::websocket::stream<boost::beast::tcp_stream, false>;

/// Exchanges encrypted messages between two agents over a WebSocket (RFC 6455).
/// Threads: the agent's only thread; handlers run in the socket's io_context.
/// Lifetime: keeps itself alive until it is closed. No handler is called after close(); an owner
/// that the handlers use must call it before it is destroyed.
class SealedConnection : public std::enable_shared_from_this<SealedConnection> {
 public:
  struct Handlers {
    /// A message was received and decrypted.
    std::function<void(const std::string& text)> on_message;
    /// The connection broke.
    std::function<void(const std::string& reason)> on_closed;
  };

  SealedConnection(WebSocket socket, const SessionKey& sends, const SessionKey& receives)
      : socket_(std::move(socket)), outgoing_(sends), incoming_(receives) {}

  void start(Handlers handlers);
  /// Sends a message. It replaces a message that has not been sent yet: only the latest state
  /// matters.
  void send(std::string text);
  void close();
  /// Sends the pending message and then nothing more; the other side closes the connection.
  void close_when_sent();

 private:
  void read_next();
  void write_next();
  void end_sending();
  void fail(const std::string& reason);

  WebSocket socket_;
  SealedMessages outgoing_;
  SealedMessages incoming_;
  Handlers handlers_;
  boost::beast::flat_buffer received_;
  std::optional<std::string> waiting_;
  std::string leaving_;
  bool is_writing_ = false;
  bool closes_when_sent_ = false;
  bool is_closed_ = false;
};

/// Sets the limits of all connections between agents.
void limit(WebSocket& socket);
/// Prevents workers from inheriting an accepted socket.
void keep_from_workers(boost::asio::ip::tcp::socket& socket);

}  // namespace lockstep::inline internal
