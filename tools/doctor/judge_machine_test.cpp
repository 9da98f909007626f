#include <gtest/gtest.h>

#include "tools/doctor/judge_machines.h"

namespace lockstep {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// A machine on which nothing is to be mended.
MachineFacts good_machine() {
  return {.host_name = "a",
          .name_addresses = {"10.0.0.1"},
          .interfaces = {{.name = "lo",
                          .address = "127.0.0.1",
                          .is_loopback = true,
                          .is_up = true,
                          .has_carrier = true,
                          .mtu = 65536},
                         {.name = "eth0",
                          .address = "10.0.0.1",
                          .is_up = true,
                          .has_carrier = true,
                          .mtu = 1500}},
          .own_address = "10.0.0.1",
          .shm_bytes = kGiB,
          .shm_free_bytes = kGiB,
          .temporary_directory = "/tmp",
          .temporary_free_bytes = kGiB,
          .open_files = 1024,
          .processors = 8,
          .memory_bytes = 16 * kGiB,
          .memory_available_bytes = 8 * kGiB,
          .kernel = "6.1.0-1-amd64",
          .lockstep_version = "0.1.0",
          .lockstep_fingerprint = "f"};
}

// The one finding that is not in order, after a change to the good machine.
template <class Change>
Finding trouble_of(const Change& change, bool has_peers = true) {
  MachineFacts facts = good_machine();
  change(facts);
  Finding result{.text = "all in order"};
  int count = 0;
  for (const Finding& finding : judge_machine(facts, "m", has_peers)) {
    EXPECT_EQ(finding.machine, "m");
    EXPECT_EQ(finding.text.find('\n'), std::string::npos);
    if (finding.level == Level::kOk) continue;
    EXPECT_FALSE(finding.text.empty());
    result = finding;
    ++count;
  }
  EXPECT_LE(count, 1);
  return result;
}

void expect(const Finding& finding, Level level, const std::string& subject,
            const std::string& part) {
  EXPECT_EQ(finding.level, level) << finding.text;
  EXPECT_EQ(finding.subject, subject) << finding.text;
  EXPECT_NE((finding.text + "; " + finding.cure).find(part), std::string::npos)
      << finding.text << "; " << finding.cure;
}

TEST(JudgeMachine, AGoodOneHasNothingToMend) {
  for (const bool has_peers : {false, true}) {
    EXPECT_EQ(trouble_of([](MachineFacts&) {}, has_peers).text, "all in order");
    EXPECT_GE(judge_machine(good_machine(), "m", has_peers).size(), 10U);
  }
}

TEST(JudgeMachine, ANameThatMeansLoopbackMattersToPeers) {
  const auto loopback = [](MachineFacts& facts) { facts.name_addresses = {"127.0.1.1", "::1"}; };
  expect(trouble_of(loopback), Level::kWarn, "host name", "a resolves to 127.0.1.1, ::1");
  EXPECT_EQ(trouble_of(loopback, false).text, "all in order");
  expect(trouble_of([](MachineFacts& facts) {
           facts.name_addresses.clear();
           facts.name_trouble = "Name or service not known";
         }),
         Level::kWarn, "host name", "/etc/hosts");
  EXPECT_EQ(trouble_of([](MachineFacts& facts) {
              facts.name_addresses = {"::1", "10.0.0.1"};
            }).text,
            "all in order");
}

TEST(JudgeMachine, TheWayToOthers) {
  const auto no_way = [](MachineFacts& facts) {
    facts.own_address.clear();
    facts.own_address_trouble = "route to a: Network is unreachable";
  };
  expect(trouble_of(no_way), Level::kFail, "interface", "Network is unreachable");
  EXPECT_EQ(trouble_of(no_way, false).text, "all in order");
  expect(trouble_of([](MachineFacts& facts) { facts.interfaces[1].has_carrier = false; }),
         Level::kFail, "interface", "eth0 (10.0.0.1) is without a carrier");
  expect(trouble_of([](MachineFacts& facts) { facts.interfaces[1].is_up = false; }), Level::kFail,
         "interface", "ip link set eth0 up");
  expect(trouble_of([](MachineFacts& facts) { facts.own_address = "10.9.9.9"; }), Level::kFail,
         "interface", "correct --local-addr");
  expect(trouble_of([](MachineFacts& facts) { facts.gloo_interface = "ib0"; }), Level::kFail,
         "interface", "GLOO_SOCKET_IFNAME=ib0");
}

TEST(JudgeMachine, WhatIsShort) {
  expect(trouble_of([](MachineFacts& facts) { facts.shm_free_bytes = kGiB / 64; }), Level::kWarn,
         "shared memory", "16 MiB free of 1 GiB");
  expect(trouble_of([](MachineFacts& facts) { facts.shm_bytes = facts.shm_free_bytes = 0; }),
         Level::kWarn, "shared memory", "there is no /dev/shm");
  expect(trouble_of([](MachineFacts& facts) { facts.temporary_free_bytes = kGiB / 64; }),
         Level::kWarn, "temporary files", "16 MiB free");
  expect(trouble_of([](MachineFacts& facts) { facts.temporary_trouble = "make a directory"; }),
         Level::kFail, "temporary files", "TMPDIR");
  expect(trouble_of([](MachineFacts& facts) { facts.open_files = 512; }), Level::kWarn,
         "open files", "512");
  expect(trouble_of([](MachineFacts& facts) { facts.open_files = 100; }), Level::kFail,
         "open files", "ulimit -n");
  expect(trouble_of([](MachineFacts& facts) { facts.processes = 500; }), Level::kWarn, "processes",
         "ulimit -u");
  expect(trouble_of([](MachineFacts& facts) { facts.group_processes_left = 50; }), Level::kWarn,
         "processes", "at most 50");
  expect(trouble_of([](MachineFacts& facts) { facts.processor_quota = 0.5; }), Level::kWarn,
         "processors", "the time of 0.5");
  EXPECT_EQ(trouble_of([](MachineFacts& facts) { facts.processor_quota = 2; }).text,
            "all in order");
  expect(trouble_of([](MachineFacts& facts) { facts.memory_available_bytes = kGiB / 2; }),
         Level::kWarn, "memory", "512 MiB available of 16 GiB");
  expect(trouble_of([](MachineFacts& facts) { facts.memory_available_bytes = kGiB / 8; }),
         Level::kFail, "memory", "128 MiB available");
}

TEST(JudgeMachine, LockedMemoryMattersToDevices) {
  const auto little = [](MachineFacts& facts) { facts.locked_memory_bytes = 65'536; };
  EXPECT_EQ(trouble_of(little).text, "all in order");
  expect(trouble_of([&](MachineFacts& facts) {
           little(facts);
           facts.has_infiniband = true;
         }),
         Level::kWarn, "locked memory", "ulimit -l");
}

TEST(JudgeMachine, KernelAndDevices) {
  for (const char* const old : {"4.19.0", "5.4.0-generic", ""}) {
    expect(trouble_of([&](MachineFacts& facts) { facts.kernel = old; }), Level::kFail, "versions",
           "Linux 5.9");
  }
  EXPECT_EQ(trouble_of([](MachineFacts& facts) { facts.kernel = "5.10.0"; }).text, "all in order");
  expect(trouble_of([](MachineFacts& facts) { facts.gpus = 2; }), Level::kWarn, "GPUs", "2 NVIDIA");
}

TEST(JudgeMachine, TheProgram) {
  expect(trouble_of([](MachineFacts& facts) {
           facts.program = {.name = "./train", .trouble = "no such program: ./train"};
         }),
         Level::kFail, "program", "the same path on each machine");
  expect(trouble_of([](MachineFacts& facts) {
           facts.program = {
               .name = "t", .path = "/t", .missing_libraries = {"libtorch.so", "libc10.so"}};
         }),
         Level::kFail, "program", "/t needs libtorch.so, libc10.so");
  expect(trouble_of([](MachineFacts& facts) {
           facts.python = {.asked = true, .path = "/usr/bin/python3"};
         }),
         Level::kWarn, "Python", "has no torch");
  expect(trouble_of([](MachineFacts& facts) {
           facts.python = {.asked = true, .trouble = "no such program: python3"};
         }),
         Level::kFail, "Python", "PYTHON_EXEC");
}

TEST(JudgeMachine, FindingsAreLinesAndFailuresComeLast) {
  const std::vector<Finding> findings = {{Level::kFail, "b", "port", "none", "make one"},
                                         {Level::kOk, "", "versions", "good", ""},
                                         {Level::kWarn, "a", "memory", "little", "buy some"}};
  EXPECT_EQ(
      text_of(findings),
      "ok    versions: good\nwarn  a: memory: little; buy some\nfail  b: port: none; make one\n");
  EXPECT_TRUE(has_failed(findings));
  EXPECT_FALSE(has_failed({findings[1], findings[2]}));
  EXPECT_EQ(findings_of(json_of(findings)), findings);
  EXPECT_FALSE(findings_of("[]") || findings_of("{"));
  EXPECT_NE(json_of(findings).find("\"ok\": false"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
