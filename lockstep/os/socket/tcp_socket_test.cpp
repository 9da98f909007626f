#include "lockstep/os/socket/tcp_socket.h"

#include <cerrno>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TcpSocket, BindsToAFreePortAndKnowsIt) {
  const UniqueFd fd = bind_tcp("127.0.0.1", 0);
  EXPECT_GT(bound_port(fd.get()), 0);
}

TEST(TcpSocket, NamesThePortThatIsTaken) {
  const UniqueFd owner = bind_tcp("127.0.0.1", 0);
  ASSERT_EQ(::listen(owner.get(), 1), 0);
  const auto port = bound_port(owner.get());
  try {
    bind_tcp("127.0.0.1", port);
    FAIL() << "bound a port that is taken";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(port)), std::string::npos)
        << error.what();
  }
}

TEST(TcpSocket, PeersMayKnowThisMachineByAnAddressItDoesNotHave) {
  const char* not_ours = "192.0.2.7";  // RFC 5737: nobody's
  EXPECT_THROW(bind_tcp(not_ours, 0), SystemError);
  EXPECT_GT(bound_port(bind_tcp_for_peers(not_ours, 0).get()), 0);
}

TEST(TcpSocket, RefusesAHostThatDoesNotResolve) {
  EXPECT_THROW(bind_tcp("no-such-host.invalid", 0), UsageError);
}

TEST(TcpSocket, WaitingForAListenerEndsWhenThereIsOneAndAtTheDeadline) {
  const UniqueFd fd = bind_tcp("127.0.0.1", 0);
  const auto port = bound_port(fd.get());
  EXPECT_THROW(wait_for_listener("127.0.0.1", port, Deadline::after(std::chrono::milliseconds(20))),
               TimeoutError);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  wait_for_listener("127.0.0.1", port, Deadline::after(std::chrono::minutes(1)));
}

TEST(TcpSocket, ReadsOfConnectionsThatALibraryKeepsToItselfCanBeLimited) {
  const UniqueFd listener = bind_tcp("127.0.0.1", 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
  limit_reads_from(bound_port(listener.get()), std::chrono::milliseconds(10));
  char byte = 0;
  EXPECT_EQ(::recv(client.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(::send(server.get(), "x", 1, 0), 1);
  EXPECT_EQ(::recv(client.get(), &byte, 1, 0), 1) << "it is of use until then";
}

TEST(TcpSocket, LoopbackIsReachedFromLoopback) {
  EXPECT_EQ(local_address_towards("127.0.0.1"), "127.0.0.1");
}

TEST(TcpSocket, ADescriptorThatIsNoSocketHasNoPort) {
  EXPECT_THROW(bound_port(-1), SystemError);
}

}  // namespace
}  // namespace lockstep
