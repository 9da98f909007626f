#include "launcher/cli/hosts_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

const std::vector<RemoteHost> kTwoHosts = {{.name = "me@a", .slots = 2}, {.name = "b"}};

HostsFacts facts() {
  return {.secret = "s",
          .directory = "/work",
          .environment = {"PATH=/bin", "LOCKSTEP_TIMEOUT_S=60", "LOCKSTEP_JOB_SECRET=old",
                          "LOCKSTEP_JOB=mark", "PET_HOSTS=a,b", "PET_ROLE=x", "DATA=/data"},
          .lockstep = "/opt/lockstep",
          .port = 15'001,
          .marker = "m"};
}

OverseeOptions plan_of(std::vector<std::string> arguments,
                       const std::vector<RemoteHost>& hosts = kTwoHosts) {
  arguments.insert(arguments.end(), {"./train", "--epochs=1", "a b"});
  return plan_hosts(parse_run_flags(arguments), hosts, facts());
}

std::string refusal_of_plan(const std::vector<std::string>& arguments) {
  try {
    plan_of(arguments);
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(HostsPlan, EachMachineHasTheCommandLineAndItsPlace) {
  const OverseeOptions options =
      plan_of({"--hosts=x", "--nproc_per_node=4", "--max-restarts", "3", "--tee=3"});
  ASSERT_EQ(options.commands.size(), 2U);
  EXPECT_EQ(options.commands[0].host.name, "me@a");
  EXPECT_THAT(options.commands[0].request.arguments,
              ElementsAre("run", "--max-restarts=3", "--tee=3", "--nproc-per-node=2", "--nnodes=2",
                          "--node-rank=0", "--rdzv-endpoint=[a]:15001", "--", "./train",
                          "--epochs=1", "a b"));
  EXPECT_THAT(options.commands[1].request.arguments,
              ElementsAre("run", "--nproc-per-node=4", "--max-restarts=3", "--tee=3", "--nnodes=2",
                          "--node-rank=1", "--rdzv-endpoint=[a]:15001", "--", "./train",
                          "--epochs=1", "a b"));
  EXPECT_EQ(options.commands[1].request.directory, "/work");
  EXPECT_EQ(options.least_hosts, 2U);
  EXPECT_EQ(options.ssh.lockstep, "/opt/lockstep");
  EXPECT_EQ(options.ssh.command.front(), "ssh");
}

TEST(HostsPlan, OwnVariablesAndThoseAskedForGoThere) {
  const OverseeOptions options = plan_of({"--hosts=x", "--env=DATA", "--env", "A=1,2", "--env=B="});
  EXPECT_THAT(options.commands[1].request.environment,
              ElementsAre("LOCKSTEP_TIMEOUT_S=60", "PET_ROLE=x", "DATA=/data", "A=1,2",
                          "B=", "LOCKSTEP_JOB_SECRET=s"));
  EXPECT_NE(refusal_of_plan({"--hosts=x", "--env=NONE"}).find("--env=NONE: it is not set here"),
            std::string::npos);
}

TEST(HostsPlan, MachinesThatMayBeMissingAreNotNumbered) {
  const OverseeOptions options =
      plan_of({"--hosts=x", "--nnodes=1:3", "--rdzv-conf=join_timeout=5"});
  EXPECT_EQ(options.least_hosts, 1U);
  const auto& first = options.commands[0].request.arguments;
  EXPECT_THAT(first, Contains("--nnodes=1:3"));
  EXPECT_THAT(first, Contains("--rdzv-backend=c10d"));
  EXPECT_THAT(first, Contains("--rdzv-conf=join_timeout=5,is_host=1"));
  EXPECT_THAT(first, Not(Contains("--node-rank=0")));
  EXPECT_THAT(options.commands[1].request.arguments,
              Contains("--rdzv-conf=join_timeout=5,is_host=0"));
}

TEST(HostsPlan, WhereToMeetMayBeGiven) {
  const OverseeOptions options =
      plan_of({"--hosts=x", "--master-addr=10.0.0.1", "--master-port=29501"});
  EXPECT_THAT(options.commands[1].request.arguments, Contains("--rdzv-endpoint=[10.0.0.1]:29501"));
  const OverseeOptions by_endpoint = plan_of({"--hosts=x", "--rdzv-endpoint=c:1"});
  EXPECT_THAT(by_endpoint.commands[1].request.arguments, Contains("--rdzv-endpoint=c:1"));
}

TEST(HostsPlan, OneMachineNeedsNoMeeting) {
  EXPECT_THAT(
      plan_of({"--hosts=x"}, {{.name = "b"}}).commands[0].request.arguments,
      ElementsAre("run", "--nnodes=1", "--node-rank=0", "--", "./train", "--epochs=1", "a b"));
}

TEST(HostsPlan, TheTimeToEndHasRoomForTheShutdownTimeout) {
  const OverseeOptions options = plan_of({"--hosts=x", "--shutdown-timeout=2"});
  EXPECT_GT(options.commands[0].request.patience, std::chrono::seconds(12));
  EXPECT_LT(options.commands[0].request.patience, std::chrono::seconds(32));
}

TEST(HostsPlan, WhatDoesNotFitIsRefusedHere) {
  const auto refuses = [](const std::vector<std::string>& arguments, const std::string& part) {
    const std::string message = refusal_of_plan(arguments);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refuses({"--hosts=x", "--standalone"}, "--hosts with --standalone");
  refuses({"--hosts=x", "--node-rank=1"}, "--hosts with --node-rank");
  refuses({"--hosts=x", "--local-addr=a"}, "--hosts with --local-addr");
  refuses({"--hosts=x", "--nnodes=3"}, "--nnodes=3: --hosts names 2 machines");
  refuses({"--hosts=x", "--nnodes=3:4"}, "--nnodes=3:4: --hosts names 2 machines");
  refuses({"--hosts=x", "--max-restarts=x"}, "--max-restarts='x'");
  refuses({"--hosts=x", "--ssh-command= "}, "--ssh-command");
}

TEST(HostsPlan, FlagsOfHostsMeanNothingWithout) {
  EXPECT_THROW(check_no_hosts_flags(parse_run_flags({"--env=A=1", "./train"})), UsageError);
  EXPECT_NO_THROW(check_no_hosts_flags(parse_run_flags({"./train"})));
}

TEST(HostsPlan, BeginningsOfTorchrunsFlagsStayTheirs) {
  const RunFlags flags = parse_run_flags({"--e=null", "--red=3", "./train"});
  EXPECT_EQ(flags.event_log_handler, "null");
  EXPECT_EQ(flags.redirects, "3");
  EXPECT_FALSE(parse_run_flags({"--h"}).help.empty());
  EXPECT_EQ(parse_run_flags({"--re=3", "./train"}).redirects, "3");
}

}  // namespace
}  // namespace lockstep
