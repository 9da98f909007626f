#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include "launcher/agents/accept_loop.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// An HTTP request.
struct LiveRequest {
  std::string method{};
  std::string target{};
  std::string body{};
};

/// An HTTP response.
struct LiveAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body{};
};

/// Answers HTTP requests (RFC 9112), one per connection, over TCP or a Unix socket. Resources of
/// clients are bounded: the size of requests, the number of connections and their time. Beyond the
/// limit the oldest connection is dropped, so new clients are still served under a flood.
/// Threads: the agent's only thread; handlers run while the io_context runs.
/// Lifetime: may be destroyed while the io_context runs.
class LiveServer {
 public:
  using Handler = std::function<LiveAnswer(const LiveRequest&)>;
  /// Limits of a server.
  struct Limits {
    std::size_t most_connections = 32;
    /// For reading a whole request, and again for sending its response.
    std::chrono::milliseconds timeout{5'000};
  };

  /// `listening`: a listening socket.
  LiveServer(boost::asio::io_context& io, UniqueFd listening, Handler handler, Limits limits);
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

 private:
  using Protocol = boost::asio::generic::stream_protocol;
  struct Connection;

  void take(Protocol::socket socket);
  LiveAnswer answer_of(const LiveRequest& request) const;
  void answer(const std::shared_ptr<Connection>& connection);
  void end(const std::shared_ptr<Connection>& connection);
  void pass_over_rest(const std::shared_ptr<Connection>& connection);
  void forget(const std::shared_ptr<Connection>& connection);

  const Handler handler_;
  const Limits limits_;
  AcceptLoop<Protocol> accept_loop_;
  std::list<std::shared_ptr<Connection>> connections_;
  /// Handlers that run after the destructor find it expired.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
