// What a stranger may send to where agents meet: a real server, and a connection for each input.
// Run by tests/fuzz/run.sh.
#include <cstdint>
#include <cstdlib>

#include <boost/asio/write.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/agents/control_server.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

struct Meeting {
  Meeting() {
    // Refusals would fill the console.
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
    UniqueFd listening = bind_tcp("127.0.0.1", 0);
    port = bound_port(listening.get());
    if (::listen(listening.get(), 16) != 0) std::abort();
    server = std::make_unique<ControlServer>(
        io, service, ControlServer::Settings{.job = "job", .secret = "secret"},
        std::move(listening));
  }

  asio::io_context io{1};
  RendezvousService service{{.min_nodes = 2, .max_nodes = 2}, {}};
  std::uint16_t port = 0;
  std::unique_ptr<ControlServer> server;
};

void send(Meeting& meeting, const std::uint8_t* bytes, std::size_t size) {
  tcp::socket stranger(meeting.io);
  stranger.connect({asio::ip::address_v4::loopback(), meeting.port});
  // Without a wait in the kernel's TIME_WAIT for each of millions.
  stranger.set_option(asio::socket_base::linger(true, 0));
  boost::system::error_code ignored;
  stranger.write_some(asio::buffer(bytes, size), ignored);
  stranger.shutdown(tcp::socket::shutdown_send, ignored);
  meeting.io.restart();
  // Until it is answered or forgotten.
  for (int turn = 0; turn < 8; ++turn) meeting.io.poll();
  if (meeting.server->agent_count() != 0) std::abort();
  if (!meeting.service.state().nodes.empty()) std::abort();
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static lockstep::Meeting meeting;
  lockstep::send(meeting, bytes, size);
  return 0;
}
