#pragma once

#include <functional>
#include <memory>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Accepts every connection to a listening socket. Workers inherit the accepted sockets unless
/// `taker` prevents it.
/// Threads: the agent's only thread; handlers run while the io_context runs.
/// Lifetime: may be destroyed while the io_context runs.
template <typename Protocol>
class AcceptLoop {
 public:
  using Taker = std::function<void(typename Protocol::socket)>;

  AcceptLoop(boost::asio::io_context& io, Taker taker)
      : taker_(std::move(taker)), acceptor_(io), again_(io) {}

  void start(const Protocol& protocol, UniqueFd listening) {
    acceptor_.assign(protocol, listening.get());
    static_cast<void>(listening.release());
    accept();
  }
  void stop() {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  using Error = boost::system::error_code;

  void accept() {
    acceptor_.async_accept(
        [this, alive = std::weak_ptr(alive_)](Error error, typename Protocol::socket socket) {
          if (alive.expired() || error == boost::asio::error::operation_aborted) return;
          if (!acceptor_.is_open()) return;
          if (!error) {
            taker_(std::move(socket));
            return accept();
          }
          // Most likely no descriptor is free: retry when some are.
          constexpr std::chrono::milliseconds kShortOfThem{100};
          again_.expires_after(kShortOfThem);
          again_.async_wait([this, alive](Error stopped) {
            if (!stopped && !alive.expired()) accept();
          });
        });
  }

  const Taker taker_;
  boost::asio::basic_socket_acceptor<Protocol> acceptor_;
  boost::asio::steady_timer again_;
  /// Handlers that run after the destructor find it expired.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

/// Address family of a bound socket: AF_INET, AF_INET6 or AF_UNIX.
inline int family_of(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return address.ss_family;
}

}  // namespace lockstep::inline internal
