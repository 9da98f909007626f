#include "diagnose/capture/crash_text.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "diagnose/capture/crash_cause.h"

namespace lockstep {
namespace {

// As a reader of JSON understands it.
std::string read_back(std::string_view text) {
  const auto json = std::make_unique<CrashText>();
  json->raw("\"").text(text).raw("\"");
  return nlohmann::json::parse(json->view()).get<std::string>();
}

TEST(CrashText, ReadersOfJsonGetTheTextBack) {
  std::string all_letters;
  for (char c = 1; c < 127; ++c) all_letters += c;
  EXPECT_EQ(read_back(all_letters), all_letters);
  EXPECT_EQ(read_back("größer, 字, 😀"), "größer, 字, 😀");
  EXPECT_EQ(read_back(""), "");
}

TEST(CrashText, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(read_back("a\xff z"), "a? z");
  EXPECT_EQ(read_back("cut \xe5\xad"), "cut ??");    // the end of a character is missing
  EXPECT_EQ(read_back("\xc0\x80"), "??");            // longer than needed
  EXPECT_EQ(read_back("\xed\xa0\x80"), "???");       // half of a pair of UTF-16
  EXPECT_EQ(read_back("\xf4\x90\x80\x80"), "????");  // above the last character
  EXPECT_EQ(read_back("\xf0\x8f\xbf\xbf"), "????");
}

TEST(CrashText, WritesNumbers) {
  const auto text = std::make_unique<CrashText>();
  text->decimal(0).raw(" ").decimal(~0ULL).raw(" ").hexadecimal(0).raw(" ").hexadecimal(0x1f);
  EXPECT_EQ(text->view(), "0 18446744073709551615 0x0 0x1f");
}

TEST(CrashText, WhatDoesNotFitIsLeftOut) {
  const auto text = std::make_unique<CrashText>();
  while (text->fits()) text->raw("0123456");
  const std::size_t full = text->size();
  EXPECT_EQ(full % 7, 0U);
  text->raw("1");
  EXPECT_EQ(text->size(), full) << "something that comes later must not fill the gap";
  text->rewind(7);
  EXPECT_TRUE(text->fits());
  EXPECT_EQ(text->raw("x").view(), "0123456x");
}

TEST(CrashCause, WordsOfALongExceptionEndWhereTheirRoomDoes) {
  CrashWords words{};
  try {
    throw std::runtime_error(std::string(2 * words.size(), 'x'));
  } catch (...) {
    words = describe_exception();
  }
  EXPECT_EQ(std::find(words.begin(), words.end(), '\0') - words.begin(),
            static_cast<std::ptrdiff_t>(words.size()) - 1);
}

}  // namespace
}  // namespace lockstep
