#include "launcher/remote/host_session.h"

#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

TEST(HostSession, SendsARequestThatIsLargerThanAPipeHolds) {
  const HostedRequest request{
      .arguments = {"run"}, .environment = {"LARGE=" + std::string(200'000, 'x')}, .marker = "m"};
  std::string out;
  HostSession session(
      {.name = "there"},
      {.command = {"sh", "-c", "read -r line; echo ${#line}"}, .lockstep = "none"}, request,
      [&](const std::string& lines) { out += lines; }, [](const std::string&) {});
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (!session.end() && !deadline.passed()) {
    std::vector<pollfd> descriptors;
    session.await(descriptors, true, true);
    ::poll(descriptors.data(), descriptors.size(), 100);
    session.handle(descriptors, 0);
  }
  ASSERT_TRUE(session.end());
  EXPECT_NE(out.find(concat(encode(request).size())), std::string::npos) << out;
}

using Kind = HostEnd::Kind;

constexpr int kFailed = 1;

HostEnd ended(int status) {
  return {.kind = Kind::kEnded, .status = status};
}

const HostEnd kLost{.kind = Kind::kLost};
const HostEnd kNotBegun{.kind = Kind::kNotBegun};
const HostEnd kStopped{.kind = Kind::kStopped};

TEST(HostStatus, IsThatOfTheFirstLauncherToEnd) {
  EXPECT_EQ(job_status({ended(0), ended(0)}, std::nullopt), 0);
  EXPECT_EQ(job_status({ended(3), ended(1)}, std::nullopt), 3);
  EXPECT_EQ(job_status({kStopped, ended(255)}, std::nullopt), 255);
}

TEST(HostStatus, AMachineThatIsNotThereIsAFailure) {
  EXPECT_EQ(job_status({kNotBegun, ended(128 + SIGTERM)}, std::nullopt), kFailed);
  EXPECT_EQ(job_status({kLost, ended(128 + SIGTERM)}, std::nullopt), kFailed);
  EXPECT_EQ(job_status({}, std::nullopt), kFailed);
}

TEST(HostStatus, AJobThatGoesOnWithoutAMachineMaySucceed) {
  EXPECT_EQ(job_status({kLost, ended(0), ended(0)}, std::nullopt), 0);
  EXPECT_EQ(job_status({ended(128 + SIGTERM), ended(0)}, std::nullopt), 0);
}

TEST(HostStatus, AStoppedJobHasTheSignal) {
  EXPECT_EQ(job_status({ended(128 + SIGINT), kStopped}, SIGINT), 128 + SIGINT);
  EXPECT_EQ(job_status({ended(0), ended(0)}, SIGINT), 0);
}

TEST(HostStatus, WhatSshSaysIsTheReason) {
  const std::string words = "ssh: connect to host b port 22: Connection refused";
  const HostEnd refused = why_not_begun(255, words, "/opt/lockstep");
  EXPECT_EQ(refused.kind, Kind::kNotBegun);
  EXPECT_EQ(refused.reason, "cannot be reached: " + words);
  const HostEnd absent =
      why_not_begun(127, "sh: 1: exec: /opt/lockstep: not found", "/opt/lockstep");
  EXPECT_NE(absent.reason.find("cannot execute /opt/lockstep there (sh: 1: exec"),
            std::string::npos);
  EXPECT_NE(absent.reason.find("--remote-lockstep=PATH"), std::string::npos);
  EXPECT_EQ(why_not_begun(1, "lockstep: go to /work on b: No such file", "").reason,
            "cannot start lockstep there: go to /work on b: No such file");
}

TEST(HostStatus, LinesOfLaunchersAreMarked) {
  const RemoteHost host{.name = "me@b"};
  EXPECT_EQ(marked_line(host, "lockstep: waiting: 1 of 2"), "me@b: lockstep: waiting: 1 of 2");
  EXPECT_EQ(marked_line(host, "[default0]:lockstep: x"), "[default0]:lockstep: x");
}

}  // namespace
}  // namespace lockstep
