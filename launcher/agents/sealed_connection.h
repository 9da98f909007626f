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

using WebSocket = boost::beast::websocket::stream<boost::beast::tcp_stream>;

/// Messages between two agents over a WebSocket (RFC 6455), each sealed.
/// Threads: the agent's only one; handlers run in the io_context of the socket.
/// Lifetime: keeps itself alive until it is closed. After close() no handler is called; so an owner
/// whom the handlers use closes it before it goes.
class SealedConnection : public std::enable_shared_from_this<SealedConnection> {
 public:
  struct Handlers {
    /// A message that opened.
    std::function<void(const std::string& text)> on_message;
    /// The connection is gone; why.
    std::function<void(const std::string& reason)> on_closed;
  };

  SealedConnection(WebSocket socket, const SessionKey& sends, const SessionKey& receives)
      : socket_(std::move(socket)), outgoing_(sends), incoming_(receives) {}

  void start(Handlers handlers);
  /// In place of a message that has not left yet: what is true now is all that counts.
  void send(std::string text);
  void close();
  /// Sends nothing after what was sent already; the other side is to close.
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

/// The limits that all connections between agents have. `accepted` sockets are not inherited by
/// workers.
void limit(WebSocket& socket);
void keep_from_workers(boost::asio::ip::tcp::socket& socket);

}  // namespace lockstep::inline internal
