#include "launcher/agents/meet.h"

#include <cerrno>
#include <optional>

#include <boost/asio/ip/tcp.hpp>
#include <sys/socket.h>

#include "launcher/agents/elected_rendezvous.h"
#include "launcher/agents/handshake.h"
#include "launcher/agents/joined_rendezvous.h"
#include "launcher/agents/served_rendezvous.h"
#include "launcher/supervise/launcher.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

// Who serves a rendezvous at a port of this machine: "agents of job 'train' of host (pid 42)";
// empty where something else listens there, or nothing answers within a second.
std::string who_listens(const std::string& host, std::uint16_t port) noexcept try {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(std::chrono::seconds(1));
  stream.connect(host, std::to_string(port));
  stream << "GET / HTTP/1.0\r\n\r\n" << std::flush;
  for (std::string line; std::getline(stream, line);) {
    const auto begin = line.find(handshake::kAgentsOf);
    if (begin != std::string::npos) return line.substr(begin, line.find('\r') - begin);
  }
  return "";
} catch (...) {
  return "";
}

UniqueFd listen_at(const RendezvousOptions& options) {
  // A machine that is told to serve may be reached by an address that it does not know of.
  UniqueFd socket = options.is_host ? bind_tcp_for_peers(options.host, options.port)
                                    : bind_tcp_if_own(options.host, options.port);
  constexpr int kBacklog = 512;
  if (::listen(socket.get(), kBacklog) != 0) {
    throw SystemError(concat("listen at ", options.host, " port ", options.port), errno,
                      "another program listens there; choose another port");
  }
  return socket;
}

// For the machine that is told to serve.
UniqueFd listen_as_host(const RendezvousOptions& options) {
  try {
    return listen_at(options);
  } catch (const SystemError& error) {
    if (error.errno_value() != EADDRINUSE) throw;
    const std::string owner = who_listens(options.host, options.port);
    throw SystemError(
        concat("serve the rendezvous at ", options.host, " port ", options.port), EADDRINUSE,
        owner.empty() ? std::string("another program listens there; choose another port")
                      : concat(owner,
                               " use this port; give this machine another --node-rank, or this "
                               "job another port"));
  }
}

// The endpoint's socket, if it is for this machine to serve and nobody does yet.
std::optional<UniqueFd> serve_if_first(const RendezvousOptions& options) {
  try {
    return listen_at(options);
  } catch (const SystemError& error) {
    const bool elsewhere = error.errno_value() == EADDRNOTAVAIL;
    if (elsewhere || error.errno_value() == EADDRINUSE) return std::nullopt;
    throw;
  } catch (const UsageError&) {
    return std::nullopt;  // A name that is not known yet: the other machine may have to start
                          // first.
  }
}

}  // namespace

std::unique_ptr<JobRendezvous> meet(boost::asio::io_context& io, const LaunchOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (rendezvous.backend == RendezvousOptions::Backend::kEtcd) {
    return std::make_unique<ElectedRendezvous>(io, options, rules_of(options));
  }
  std::optional<UniqueFd> socket;
  if (rendezvous.is_host == true) {
    socket = listen_as_host(rendezvous);
  } else if (!rendezvous.is_host) {
    socket = serve_if_first(rendezvous);
  }
  if (!socket) return std::make_unique<JoinedRendezvous>(io, options);
  return std::make_unique<ServedRendezvous>(io, options, rules_of(options), std::move(*socket));
}

}  // namespace lockstep::inline internal
