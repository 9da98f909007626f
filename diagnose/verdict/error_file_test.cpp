#include "diagnose/verdict/error_file.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

ErrorReport report_in(const std::string& content) {
  const TemporaryDirectory directory(std::filesystem::temp_directory_path(), "lockstep_test_");
  const auto file = directory.path() / "error.json";
  std::ofstream(file) << content;
  return read_error_file(file);
}

std::string message_in(const std::string& content) {
  return report_in(content).message;
}

TEST(ErrorFile, GivesTheFirstLineOfTheMessage) {
  EXPECT_EQ(message_in(R"({"message":{"message":"ValueError: no\nat line 3","extraInfo":{}}})"),
            "ValueError: no");
  EXPECT_EQ(message_in(R"({"message":"plain"})"), "plain");
}

TEST(ErrorFile, WhatIsSomethingElseHasNoMessage) {
  EXPECT_EQ(read_error_file("/no/such/file").message, "");
  for (const char* content : {"", "{", "[]", "3", "{}", R"({"message":3})", R"({"message":{}})",
                              R"({"message":{"message":[]}})", R"({"message":"cut)"}) {
    EXPECT_EQ(message_in(content), "") << content;
  }
}

TEST(ErrorFile, TellsWhoseFailureTheErrorIs) {
  const auto kind = [](const std::string& message) {
    return report_in(R"({"message":{"message":")" + message + R"("}})").kind;
  };
  EXPECT_EQ(kind("PeerLost: rank 1 is gone"), ErrorKind::kOtherWorker);
  EXPECT_EQ(kind("PeerFailed: rank 0 failed"), ErrorKind::kOtherWorker);
  EXPECT_EQ(kind("RuntimeError: [..] Connection closed by peer"), ErrorKind::kOtherWorker);
  EXPECT_EQ(kind("ValueError: no PeerLost: here"), ErrorKind::kOwn);
  EXPECT_EQ(report_in("{}").kind, ErrorKind::kOwn);
}

TEST(ErrorFile, GivesTheExitCodeOfAFailure) {
  EXPECT_EQ(report_in(R"({"message":{"message":"a","errorCode":3}})").exit_code, 3);
  for (const char* other : {"0", "-1", "256", "1e300", "18446744073709551615", "\"3\"", "null"}) {
    const ErrorReport report =
        report_in(std::string(R"({"message":{"message":"a","errorCode":)") + other + "}}");
    EXPECT_EQ(report.exit_code, 0) << other;
    EXPECT_EQ(report.message, "a") << other;
  }
  EXPECT_EQ(report_in(R"({"message":"plain"})").exit_code, 0);
}

constexpr const char* kCrash = R"-({"message":{"message":"SIGSEGV in train(+0x1f0)",
  "errorCode":139,"extraInfo":{"timestamp":"1","crash":{"signal":11,"cause":"SIGSEGV",
  "thread":"worker","main_thread":false,"collectives":[
    {"operation":"send","group":"a","ended":true},
    {"operation":"all_reduce","group":"default","sequence":7,"ended":false}],
  "frames":[{"address":"0x55f0","module":"/bin/train","offset":"0x1f0"}]}}}})-";

TEST(ErrorFile, GivesACrash) {
  const auto crash = report_in(kCrash).crash;
  ASSERT_TRUE(crash);
  EXPECT_EQ(crash->cause, "SIGSEGV");
  EXPECT_EQ(crash->thread, "worker");
  ASSERT_EQ(crash->frames.size(), 1U);
  EXPECT_EQ(crash->frames[0].address, 0x55f0U);
  EXPECT_EQ(crash->frames[0].module, "/bin/train");
  EXPECT_EQ(crash->frames[0].offset, 0x1f0U);
  ASSERT_EQ(crash->collectives.size(), 2U);
  EXPECT_EQ(crash->collectives[0].call, "send of group 'a'");
  EXPECT_TRUE(crash->collectives[0].ended);
  EXPECT_EQ(crash->collectives[1].call, "all_reduce number 7 of group 'default'");
  EXPECT_FALSE(crash->collectives[1].ended);
  EXPECT_FALSE(report_in(R"({"message":{"message":"a","extraInfo":{}}})").crash);
}

TEST(ErrorFile, TakesPartsOfACrashThatAreSomethingElse) {
  const auto crash_in = [](const std::string& crash) {
    return report_in(R"({"message":{"message":"a","extraInfo":{"crash":)" + crash + "}}}").crash;
  };
  for (const char* none : {"3", "null", "[]", "\"text\""}) EXPECT_FALSE(crash_in(none)) << none;
  const auto crash = crash_in(
      R"({"cause":3,"frames":[3,{},{"address":5,"module":[],"offset":"x"},{"address":"0xfg"}],
          "collectives":[null,{"sequence":-1,"operation":{},"ended":"yes"}]})");
  ASSERT_TRUE(crash);
  EXPECT_EQ(crash->cause, "");
  ASSERT_EQ(crash->frames.size(), 4U);
  EXPECT_EQ(crash->frames[3].address, 0xfU);
  EXPECT_EQ(crash->collectives.size(), 2U);
  std::string many = "3";
  for (int i = 0; i < 1000; ++i) many += ",3";
  EXPECT_EQ(crash_in("{\"frames\":[" + many + "]}")->frames.size(), 256U);
}

TEST(ErrorFile, HoldsTheNamesOnceTheyAreKnown) {
  const TemporaryDirectory directory(std::filesystem::temp_directory_path(), "lockstep_test_");
  const auto file = directory.path() / "error.json";
  std::ofstream(file) << kCrash;
  CrashReport crash = *read_error_file(file).crash;
  crash.frames[0].lines = {{.function = "step(int)", .file = "train.cpp", .line = 42}};
  add_names(file, crash);
  EXPECT_EQ(read_error_file(file).message, "SIGSEGV in step(int) train.cpp:42");
  EXPECT_EQ(read_error_file(file).exit_code, 139);
  EXPECT_EQ(read_error_file(file).crash->frames[0].offset, 0x1f0U);
}

TEST(ErrorFile, CannotControlTheTerminal) {
  EXPECT_EQ(message_in(R"({"message":"a\u001b[2Jb"})"), "a [2Jb");
  EXPECT_LE(message_in(R"({"message":")" + std::string(100'000, 'x') + "\"}").size(), 1000U);
}

}  // namespace
}  // namespace lockstep
