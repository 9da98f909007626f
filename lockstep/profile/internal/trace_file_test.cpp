#include "lockstep/profile/internal/trace_file.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(TraceFile, PathsCarryTheRank) {
  EXPECT_EQ(trace_path("trace.json", 3), "trace.rank3.json");
  EXPECT_EQ(trace_path("a.b/run.1.json", 12), "a.b/run.1.rank12.json");
  EXPECT_EQ(trace_path("/tmp/trace", 0), "/tmp/trace.rank0");
}

TEST(TraceFile, TheProcessGetsItsName) {
  EXPECT_EQ(with_process_name(
                R"([{"name": "process_name", "args": {"name": "a b"}}, {"args": {"name": "a b"}}])",
                "rank 1"),
            R"([{"name": "process_name", "args": {"name": "rank 1"}}, {"args": {"name": "a b"}}])");
  EXPECT_EQ(with_process_name(R"({"name": "process_name", "args": {"name": ""}})", "rank 1"),
            R"({"name": "process_name", "args": {"name": "rank 1"}})");
}

TEST(TraceFile, WhatNamesNoProcessStays) {
  for (const char* text : {"", "{}", R"({"name": "process_name"})", R"("process_name" "args")",
                           R"("process_name" "args" {"name": ")"}) {
    EXPECT_EQ(with_process_name(text, "rank 1"), text);
  }
}

}  // namespace
}  // namespace lockstep
