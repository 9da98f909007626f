#include "lockstep/launch/error_file.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

std::string message_in(const std::string& content) {
  const TemporaryDirectory directory(std::filesystem::temp_directory_path(), "lockstep_test_");
  const auto file = directory.path() / "error.json";
  std::ofstream(file) << content;
  return read_error_message(file);
}

TEST(ErrorFile, GivesTheFirstLineOfTheMessage) {
  EXPECT_EQ(message_in(R"({"message":{"message":"ValueError: no\nat line 3","extraInfo":{}}})"),
            "ValueError: no");
  EXPECT_EQ(message_in(R"({"message":"plain"})"), "plain");
}

TEST(ErrorFile, WhatIsSomethingElseHasNoMessage) {
  EXPECT_EQ(read_error_message("/no/such/file"), "");
  for (const char* content : {"", "{", "[]", "3", "{}", R"({"message":3})", R"({"message":{}})",
                              R"({"message":{"message":[]}})", R"({"message":"cut)"}) {
    EXPECT_EQ(message_in(content), "") << content;
  }
}

TEST(ErrorFile, CannotControlTheTerminal) {
  EXPECT_EQ(message_in(R"({"message":"a\u001b[2Jb"})"), "a [2Jb");
  EXPECT_LE(message_in(R"({"message":")" + std::string(100'000, 'x') + "\"}").size(), 1000U);
}

}  // namespace
}  // namespace lockstep
