#include <memory>

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "launcher/agents/control_client.h"
#include "launcher/agents/control_server.h"
#include "launcher/agents/event_loop.h"
#include "launcher/agents/handshake.h"
#include "launcher/agents/joined_rendezvous.h"
#include "launcher/job/launch_options.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using tcp = asio::ip::tcp;

constexpr milliseconds kDeadline{20'000};

// A server and a client of it, each of which runs only when it is told to.
struct ControlTest : testing::Test {
  RendezvousTimeouts timeouts{};
  RendezvousService service{{.min_nodes = 2, .max_nodes = 2}, timeouts};
  asio::io_context server_io{1};
  asio::io_context client_io{1};
  std::uint16_t port = 0;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;

  void serve(milliseconds handshake_timeout = kDeadline) {
    UniqueFd listening = bind_tcp("127.0.0.1", 0);
    port = bound_port(listening.get());
    ASSERT_EQ(::listen(listening.get(), 16), 0);
    server = std::make_unique<ControlServer>(
        server_io, service,
        ControlServer::Settings{.job = "job",
                                .secret = "secret",
                                .handshake_timeout = handshake_timeout,
                                .most_strangers = 2,
                                .most_agents = 3},
        std::move(listening));
  }
  void connect(const std::string& secret = "secret") {
    client = std::make_unique<ControlClient>(
        client_io, ControlClient::Settings{.job = "job",
                                           .secret = secret,
                                           .host = "127.0.0.1",
                                           .port = port,
                                           .keep_alive_interval = milliseconds(20),
                                           .shortest_timeout = milliseconds(200)});
    client->report({.node = {.id = "id", .name = "name"}});
  }
  // Whether it came to be before the deadline.
  bool run_both_until(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::after(kDeadline);
    while (!done() && !deadline.passed()) {
      for (asio::io_context* io : {&server_io, &client_io}) {
        io->restart();
        io->run_for(milliseconds(1));
      }
    }
    return done();
  }
  // The upgrade with which an agent of the job begins a connection.
  static std::string greeting() {
    const Nonce nonce = random_nonce();
    return concat("GET ", handshake::kTarget,
                  " HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
                  handshake::kJob, ": job\r\n", handshake::kNonce, ": ", hex_of(nonce), "\r\n",
                  handshake::kProof, ": ", JobSecret("job", "secret").client_proof(nonce),
                  "\r\n\r\n");
  }
  // Sends it as one who has overheard it would, and knows no more.
  std::unique_ptr<tcp::socket> replay(const std::string& overheard) {
    auto socket = std::make_unique<tcp::socket>(client_io);
    socket->connect({asio::ip::address_v4::loopback(), port});
    asio::write(*socket, asio::buffer(overheard));
    return socket;
  }
  bool is_closed_by_server(tcp::socket& socket) {
    socket.non_blocking(true);
    return run_both_until([&] {
      char bytes[512];
      boost::system::error_code error;
      while (!error) socket.read_some(asio::buffer(bytes), error);
      return error != asio::error::would_block;
    });
  }
};

TEST_F(ControlTest, WhatIsReportedIsHeard) {
  serve();
  connect();
  EXPECT_TRUE(run_both_until([&] { return client->is_acknowledged(); }));
  EXPECT_EQ(server->agent_count(), 1U);
}

TEST_F(ControlTest, AnotherSecretOrNoneIsRefused) {
  serve();
  for (const char* secret : {"another secret", ""}) {
    connect(secret);
    EXPECT_TRUE(run_both_until([&] { return !client->refusal().empty(); })) << secret;
    EXPECT_EQ(client->refusal(), "wrong job secret");
    EXPECT_EQ(server->agent_count(), 0U);
  }
}

// A cable that was cut for some time: the transport itself tries ever more rarely.
TEST_F(ControlTest, AConnectionThatIsSilentIsMadeAnew) {
  serve();
  connect();
  ASSERT_TRUE(run_both_until([&] { return client->is_acknowledged(); }));
  run_until(client_io, -1, Deadline::after(kDeadline), [&] { return !client->trouble().empty(); });
  EXPECT_NE(client->trouble(), "");
  const auto before = client->last_contact();
  EXPECT_TRUE(
      run_both_until([&] { return client->trouble().empty() && client->last_contact() > before; }));
  // In place of the one before.
  EXPECT_TRUE(run_both_until([&] { return server->agent_count() == 1; }));
}

TEST(JoinedRendezvous, TheAddressThatTheUserGivesIsItsOwn) {
  asio::io_context io{1};
  LaunchOptions options;
  options.rendezvous.host = "127.0.0.1";
  options.rendezvous.port = 1;
  options.rendezvous.own_address = "10.1.2.3";
  EXPECT_EQ(JoinedRendezvous(io, options).own_address(), "10.1.2.3");
}

TEST_F(ControlTest, AReplayedGreetingIsNoAgentAndIsClosedSoon) {
  serve(milliseconds(50));
  const auto socket = replay(greeting());
  EXPECT_TRUE(is_closed_by_server(*socket));
  EXPECT_EQ(server->agent_count(), 0U);
}

TEST_F(ControlTest, WhoStopsHalfwayThroughTheGreetingIsClosedSoon) {
  serve(milliseconds(50));
  const std::string whole = greeting();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_TRUE(is_closed_by_server(*replay(whole.substr(0, size)))) << size;
  }
  EXPECT_EQ(server->agent_count(), 0U);
}

TEST_F(ControlTest, ReplayedGreetingsKeepNobodyOut) {
  serve();
  std::vector<std::unique_ptr<tcp::socket>> sockets;
  for (int i = 0; i < 4; ++i) sockets.push_back(replay(greeting()));
  // The oldest made way.
  EXPECT_TRUE(is_closed_by_server(*sockets[0]));
  EXPECT_TRUE(is_closed_by_server(*sockets[1]));
  connect();
  EXPECT_TRUE(run_both_until([&] { return client->is_acknowledged(); }));
  EXPECT_EQ(server->agent_count(), 1U);
}

}  // namespace
}  // namespace lockstep
