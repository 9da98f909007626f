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

struct LiveRequest {
  std::string method{};
  std::string target{};
  std::string body{};
};

struct LiveAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body{};
};

/// Answers requests of HTTP (RFC 9112), one a connection, over TCP or a Unix socket.
/// What others can make it hold is bounded: requests are short, connections few and short of time;
/// where there are too many the oldest is dropped, so that no flood keeps a newcomer out.
/// Threads: the agent's only one; everything happens while the io_context runs. It may go while
/// that runs on.
class LiveServer {
 public:
  using Handler = std::function<LiveAnswer(const LiveRequest&)>;
  struct Limits {
    std::size_t most_connections = 32;
    /// For a request to come whole, and again for its answer to be taken.
    std::chrono::milliseconds timeout{5'000};
  };

  /// `listening`: a socket that listens.
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
  /// Handlers that come too late find it gone.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
