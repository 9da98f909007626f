#include "lockstep/launch/error_file.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/os/temporary_directory.h"

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

TEST(ErrorFile, CannotControlTheTerminal) {
  EXPECT_EQ(message_in(R"({"message":"a\u001b[2Jb"})"), "a [2Jb");
  EXPECT_LE(message_in(R"({"message":")" + std::string(100'000, 'x') + "\"}").size(), 1000U);
}

}  // namespace
}  // namespace lockstep
