#include "launcher/status/live_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "launcher/agents/event_loop.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using tcp = asio::ip::tcp;

constexpr milliseconds kLongEnough{20'000};

struct Caller {
  explicit Caller(asio::io_context& io) : socket(io) {}

  tcp::socket socket;
  std::string received;
  bool is_closed = false;
};

struct LiveServerTest : testing::Test {
  asio::io_context io{1};
  std::uint16_t port = 0;
  std::unique_ptr<LiveServer> server;
  std::vector<LiveRequest> requests;

  void serve(LiveServer::Limits limits) {
    serve(limits, [this](const LiveRequest& request) {
      requests.push_back(request);
      return LiveAnswer{.status = 503, .body = "why\n"};
    });
  }
  void serve(LiveServer::Limits limits, LiveServer::Handler handler) {
    UniqueFd listening = bind_tcp("127.0.0.1", 0);
    port = bound_port(listening.get());
    ASSERT_EQ(::listen(listening.get(), 64), 0);
    server = std::make_unique<LiveServer>(io, std::move(listening), std::move(handler), limits);
  }

  std::shared_ptr<Caller> call(const std::string& text) {
    auto caller = std::make_shared<Caller>(io);
    caller->socket.connect({asio::ip::make_address("127.0.0.1"), port});
    error_code ignored;
    asio::write(caller->socket, asio::buffer(text), ignored);
    asio::async_read(caller->socket, asio::dynamic_buffer(caller->received),
                     [caller](error_code, std::size_t) { caller->is_closed = true; });
    return caller;
  }

  bool eventually(const std::function<bool()>& done) {
    run_until(io, -1, Deadline::after(kLongEnough), done);
    return done();
  }
};

constexpr const char* kRequest = "POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc";

TEST_F(LiveServerTest, AnswersARequestAndCloses) {
  serve({});
  const auto caller = call(kRequest);
  ASSERT_TRUE(eventually([&] { return caller->is_closed; }));
  EXPECT_TRUE(caller->received.starts_with("HTTP/1.1 503 ")) << caller->received;
  EXPECT_TRUE(caller->received.ends_with("\r\n\r\nwhy\n")) << caller->received;
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].method, "POST");
  EXPECT_EQ(requests[0].target, "/a");
  EXPECT_EQ(requests[0].body, "abc");
}

TEST_F(LiveServerTest, OutlivesAnAnswerThatFails) {
  serve({}, [](const LiveRequest&) -> LiveAnswer { throw std::runtime_error("why"); });
  const auto caller = call(kRequest);
  ASSERT_TRUE(eventually([&] { return caller->is_closed; }));
  EXPECT_TRUE(caller->received.starts_with("HTTP/1.1 500 ")) << caller->received;
}

TEST_F(LiveServerTest, DropsTheOldestOfTooManyConnections) {
  serve({.most_connections = 2, .timeout = kLongEnough});
  const auto first = call("");
  const auto second = call("GET /");
  const auto third = call("GET /");
  ASSERT_TRUE(eventually([&] { return first->is_closed; }));
  EXPECT_FALSE(second->is_closed);
  const auto good = call(kRequest);
  ASSERT_TRUE(eventually([&] { return good->is_closed; }));
  EXPECT_FALSE(good->received.empty());
  EXPECT_TRUE(second->is_closed);
  EXPECT_FALSE(third->is_closed);
}

TEST_F(LiveServerTest, DropsWhoeverIsSlow) {
  serve({.timeout = milliseconds(50)});
  const auto slow = call("GET / HTTP/1.1\r\n");
  ASSERT_TRUE(eventually([&] { return slow->is_closed; }));
  EXPECT_TRUE(requests.empty());
}

TEST_F(LiveServerTest, DropsWhatIsTooLongOrNoRequest) {
  serve({.timeout = kLongEnough});
  const std::string header(5'000, 'a');
  for (const std::string& text :
       {"GET / HTTP/1.1\r\nHost: " + header, std::string("\0\1\2\r\n\r\n", 7),
        std::string("POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n")}) {
    const auto caller = call(text);
    ASSERT_TRUE(eventually([&] { return caller->is_closed; })) << text;
  }
  EXPECT_TRUE(requests.empty());
}

TEST_F(LiveServerTest, MayEndWhileSomebodyIsConnected) {
  serve({.timeout = kLongEnough});
  const auto caller = call("GET /");
  io.poll();
  server.reset();
  EXPECT_TRUE(eventually([&] { return caller->is_closed; }));
}

}  // namespace
}  // namespace lockstep
