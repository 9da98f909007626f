#include "tools/doctor/reach.h"

#include <future>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

// Far more than anything here takes.
constexpr std::chrono::milliseconds kReachPatience{20'000};

// Below the range of ports that the kernel assigns, so that no other test gets it meanwhile.
std::uint16_t free_port() {
  static auto port = static_cast<std::uint16_t>(12'000 + ::getpid() % 15'000);
  while (true) {
    try {
      return bound_port(bind_tcp("::", ++port).get());
    } catch (const SystemError&) {
      if (port > 32'000) throw;
    }
  }
}

ReachPlan plan_of(std::size_t own, std::uint16_t port, std::size_t other,
                  std::uint16_t other_port) {
  return {.own = own,
          .port = port,
          .token = "t",
          .targets = {{.machine = other, .addresses = {"127.0.0.1"}, .port = other_port}}};
}

TEST(Reach, TwoMachinesConnectWhicheverBeginsFirst) {
  const std::uint16_t first = free_port();
  const std::uint16_t second = free_port();
  auto early = std::async(std::launch::async, [&] {
    return reach(plan_of(0, first, 1, second), Deadline::after(kReachPatience));
  });
  wait_for_listener("127.0.0.1", first, Deadline::after(kReachPatience));
  const ReachReport late = reach(plan_of(1, second, 0, first), Deadline::after(kReachPatience));
  for (const ReachReport& report : {early.get(), late}) {
    EXPECT_EQ(report.listen_trouble, "");
    ASSERT_EQ(report.calls.size(), 1U);
    EXPECT_EQ(report.calls[0].trouble, "");
    EXPECT_GT(report.calls[0].round_trip_us, 0);
    EXPECT_LT(std::abs(report.calls[0].clock_ahead_us), 1e6);
  }
}

TEST(Reach, AnAbsentMachineIsReportedAtTheDeadline) {
  const ReachReport report = reach(plan_of(0, free_port(), 1, free_port()),
                                   Deadline::after(std::chrono::milliseconds(100)));
  ASSERT_EQ(report.calls.size(), 1U);
  EXPECT_EQ(report.calls[0].trouble, "Connection refused");
}

TEST(Reach, ATakenPortIsReported) {
  const UniqueFd taken = bind_tcp("::", 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  const ReachReport report = reach(plan_of(0, bound_port(taken.get()), 1, free_port()),
                                   Deadline::after(std::chrono::milliseconds(100)));
  EXPECT_NE(report.listen_trouble.find("another program listens there"), std::string::npos);
}

TEST(Reach, AnAnswerOfAnotherMachineDoesNotCount) {
  const std::uint16_t first = free_port();
  const std::uint16_t second = free_port();
  auto third = std::async(std::launch::async, [&] {
    return reach(plan_of(2, second, 0, first), Deadline::after(std::chrono::milliseconds(500)));
  });
  const ReachReport report =
      reach(plan_of(0, first, 1, second), Deadline::after(std::chrono::milliseconds(500)));
  third.get();
  EXPECT_NE(report.calls[0].trouble, "");
}

}  // namespace
}  // namespace lockstep
