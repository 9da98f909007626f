#include "tools/doctor/judge_machines.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Level = Finding::Level;

ReachFacts call_of(std::size_t target, const std::string& address,
                   const std::string& trouble = "") {
  return {.target = target, .address = address, .trouble = trouble, .round_trip_us = 100};
}

std::string address_of(std::size_t machine) {
  return "10.0.0." + std::to_string(machine + 1);
}

// Machines a, b, c that reach each other and are alike.
std::vector<ExaminedMachine> good_machines(std::size_t count) {
  std::vector<ExaminedMachine> machines;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    MachineFacts facts{
        .host_name = name,
        .interfaces = {{.name = "eth0", .address = address_of(i), .is_up = true, .mtu = 1500}},
        .own_address = address_of(i),
        .meeting_addresses = {"10.0.0.1"},
        .lockstep_version = "0.1.0",
        .lockstep_fingerprint = "f",
        .program = {.name = "./train", .fingerprint = "p", .libtorch_version = "2.13"}};
    ReachReport reach;
    for (std::size_t other = 0; other < count; ++other) {
      if (other != i) reach.calls.push_back(call_of(other, address_of(other)));
    }
    machines.push_back({.name = name, .facts = facts, .reach = reach});
  }
  return machines;
}

// What machines mean together: the findings on what one of them cannot know.
std::vector<Finding> together(const std::vector<ExaminedMachine>& machines) {
  std::vector<Finding> all = judge_machines(machines, "first");
  for (const ExaminedMachine& machine : machines) {
    if (!machine.facts) continue;
    for (const Finding& own : judge_machine(*machine.facts, machine.name, machines.size() > 1)) {
      std::erase(all, own);
    }
  }
  return all;
}

// The one finding that is not in order.
Finding trouble_in(const std::vector<ExaminedMachine>& machines) {
  Finding result{.text = "all in order"};
  int count = 0;
  for (const Finding& finding : together(machines)) {
    if (finding.level == Level::kOk) continue;
    result = finding;
    ++count;
  }
  EXPECT_LE(count, 1);
  return result;
}

void expect_trouble(const Finding& finding, Level level, const std::string& machine,
                    const std::string& part) {
  EXPECT_EQ(finding.level, level) << finding.text;
  EXPECT_EQ(finding.machine, machine) << finding.text;
  EXPECT_NE((finding.text + "; " + finding.cure).find(part), std::string::npos)
      << finding.text << "; " << finding.cure;
}

TEST(JudgeMachines, ThoseThatReachEachOtherAndAreAlikeAreInOrder) {
  for (const std::size_t count : {1U, 2U, 3U}) {
    EXPECT_EQ(trouble_in(good_machines(count)).text, "all in order") << count;
  }
  EXPECT_NE(text_of(together(good_machines(3))).find("all 3 machines can connect to each other"),
            std::string::npos);
}

TEST(JudgeMachines, ADirectionThatIsCutIsNamed) {
  auto machines = good_machines(3);
  machines[2].reach->calls[1].trouble = "no answer";
  const Finding finding = trouble_in(machines);
  expect_trouble(finding, Level::kFail, "c",
                 "cannot connect to b (10.0.0.2: no answer), but b can connect to it");
  EXPECT_NE(finding.cure.find("let the firewall of b"), std::string::npos);
  EXPECT_EQ(text_of(together(machines)).find("connect to each other"), std::string::npos);
}

TEST(JudgeMachines, ACutBetweenTwoIsOneFinding) {
  auto machines = good_machines(2);
  for (ExaminedMachine& machine : machines) machine.reach->calls[0].trouble = "no answer";
  expect_trouble(trouble_in(machines), Level::kFail, "a",
                 "neither it nor b can connect to the other (10.0.0.2");
}

TEST(JudgeMachines, AnAddressThatOthersCannotUseIsNamedWithOneThatTheyCan) {
  auto machines = good_machines(2);
  machines[0].reach->calls = {call_of(1, "10.0.0.2", "Connection refused"),
                              call_of(1, "192.168.0.2")};
  expect_trouble(trouble_in(machines), Level::kFail, "b", "--local-addr=192.168.0.2");
  // Another address than that which it would tell is nobody's concern.
  machines[0].reach->calls = {call_of(1, "10.0.0.2"), call_of(1, "172.17.0.1", "no answer")};
  EXPECT_EQ(trouble_in(machines).text, "all in order");
}

TEST(JudgeMachines, AMachineThatCouldNotBeExaminedFails) {
  auto machines = good_machines(3);
  machines[1] = {.name = "b", .trouble = "cannot be reached: Connection refused"};
  for (const std::size_t other : {0U, 2U})
    std::erase(machines[other].reach->calls, call_of(1, "10.0.0.2"));
  expect_trouble(trouble_in(machines), Level::kFail, "b", "cannot be reached: Connection refused");
  EXPECT_NE(text_of(together(machines)).find("all 2 machines"), std::string::npos);
}

TEST(JudgeMachines, APortThatIsTakenIsNamed) {
  auto machines = good_machines(2);
  machines[1].reach = ReachReport{.listen_trouble = "bind to :: port 15000: taken",
                                  .calls = {call_of(0, "10.0.0.1")}};
  machines[0].reach->calls[0].trouble = "Connection refused";
  const std::string text = text_of(together(machines));
  EXPECT_NE(text.find("fail  b: port: bind to :: port 15000: taken"), std::string::npos) << text;
}

TEST(JudgeMachines, AMeetingPlaceThatIsLoopbackElsewhereIsNamed) {
  auto machines = good_machines(2);
  machines[0].facts->meeting_addresses = {"127.0.1.1"};  // As Debian has it: no harm.
  EXPECT_EQ(trouble_in(machines).text, "all in order");
  machines[1].facts->meeting_addresses = {"127.0.1.1"};
  expect_trouble(trouble_in(machines), Level::kFail, "b", "first resolves to 127.0.1.1 there");
  machines[1].facts->meeting_addresses.clear();
  machines[1].facts->meeting_trouble = "Name or service not known";
  expect_trouble(trouble_in(machines), Level::kFail, "b", "first does not resolve");
}

TEST(JudgeMachines, WhatIsNotTheSameIsTold) {
  auto machines = good_machines(3);
  machines[2].facts->lockstep_version = "0.2.0";
  expect_trouble(trouble_in(machines), Level::kFail, "", "0.1.0 on a, b; 0.2.0 on c");
  machines = good_machines(2);
  machines[1].facts->lockstep_fingerprint = "g";
  expect_trouble(trouble_in(machines), Level::kWarn, "", "builds differ: f on a; g on b");
  machines = good_machines(2);
  machines[1].facts->program.fingerprint = "q";
  expect_trouble(trouble_in(machines), Level::kWarn, "", "files differ: p on a; q on b");
  machines = good_machines(2);
  machines[1].facts->program.libtorch_version = "2.12";
  expect_trouble(trouble_in(machines), Level::kWarn, "", "versions differ: 2.12 on b; 2.13 on a");
  machines = good_machines(2);
  machines[1].facts->host_name = "a";
  expect_trouble(trouble_in(machines), Level::kWarn, "", "a, b are all named a");
  machines = good_machines(2);
  machines[1].facts->interfaces[0].mtu = 9000;
  expect_trouble(trouble_in(machines), Level::kWarn, "", "1500 on a; 9000 on b");
}

TEST(JudgeMachines, WallClocksAreToldAndOnlyFarOnesWarnedOf) {
  auto machines = good_machines(2);
  machines[0].reach->calls[0].clock_ahead_us = -2'500;
  EXPECT_NE(text_of(together(machines)).find("b is 2.5 ms behind a"), std::string::npos);
  EXPECT_EQ(trouble_in(machines).text, "all in order");
  machines[0].reach->calls[0].clock_ahead_us = 3600e6;
  expect_trouble(trouble_in(machines), Level::kWarn, "", "b is 3.6e+06 ms ahead of a");
}

TEST(JudgeMachines, APlanHasAllOthersAtTheirAddresses) {
  auto machines = good_machines(3);
  machines[0].facts->interfaces.push_back({.name = "ib0", .address = "10.1.0.1", .is_up = true});
  machines[0].facts->interfaces.push_back({.name = "down", .address = "10.2.0.1"});
  machines[0].facts->interfaces.push_back(
      {.name = "lo", .address = "127.0.0.1", .is_loopback = true, .is_up = true});
  machines[1].facts.reset();
  const ReachPlan plan = reach_plan(machines, 2, {1, 2, 3}, "t");
  EXPECT_EQ(
      plan,
      (ReachPlan{.own = 2,
                 .port = 3,
                 .token = "t",
                 .targets = {{.machine = 0, .addresses = {"10.0.0.1", "10.1.0.1"}, .port = 1}}}));
}

TEST(JudgeMachines, ForPeopleWhatIsInOrderIsANumber) {
  const std::vector<Finding> findings = summarized({{Level::kOk, "a", "versions", "good", ""},
                                                    {Level::kOk, "a", "memory", "is there", ""},
                                                    {Level::kWarn, "a", "port", "x", "y"},
                                                    {Level::kOk, "", "connections", "z", ""}});
  EXPECT_EQ(text_of(findings),
            "ok    connections: z\nok    a: checks: 2 passed\nwarn  a: port: x; y\n");
}

}  // namespace
}  // namespace lockstep
