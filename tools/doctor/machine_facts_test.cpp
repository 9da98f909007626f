#include "tools/doctor/machine_facts.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(MachineFacts, AreReadBackAsTheyWere) {
  MachineFacts facts{
      .host_name = "a",
      .name_addresses = {"127.0.1.1"},
      .interfaces = {{.name = "eth0", .address = "10.0.0.1", .is_up = true, .mtu = 9000}},
      .shm_bytes = 1ULL << 40,
      .open_files = 1024,
      .processor_quota = 1.5,
      .program = {.name = "./train", .missing_libraries = {"libtorch.so"}}};
  const std::string text = encode(facts);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(decode<MachineFacts>(text), facts);
  facts.open_files.reset();
  EXPECT_EQ(decode<MachineFacts>(encode(facts)), facts);
}

TEST(MachineFacts, ReportsAndPlansAreReadBackToo) {
  const ReachReport report{.calls = {{.target = 1, .address = "10.0.0.2", .trouble = "refused"},
                                     {.target = 2, .round_trip_us = 12.5, .clock_ahead_us = -3}}};
  EXPECT_EQ(decode<ReachReport>(encode(report)), report);
  const ReachPlan plan{.own = 1,
                       .port = 15'000,
                       .token = "t",
                       .targets = {{.machine = 0, .addresses = {"a", "b"}, .port = 15'001}}};
  EXPECT_EQ(decode<ReachPlan>(encode(plan)), plan);
}

TEST(MachineFacts, AnythingElseIsNone) {
  for (const char* const text : {"", "[]", "7", "{", R"({"host_name": 7})", R"({"gpus": "x"})"}) {
    EXPECT_FALSE(decode<MachineFacts>(text)) << text;
  }
  EXPECT_FALSE(decode<ReachReport>(R"({"calls": [1]})"));
  EXPECT_FALSE(decode<ReachPlan>(R"({"targets": {}})"));
}

TEST(MachineFacts, WhatAnotherVersionDoesNotTellIsTheDefault) {
  const auto facts = decode<MachineFacts>(R"({"host_name": "a", "unknown": [1]})");
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->host_name, "a");
  EXPECT_FALSE(facts->open_files);
}

}  // namespace
}  // namespace lockstep
