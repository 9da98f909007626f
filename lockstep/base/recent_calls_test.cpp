#include "lockstep/base/recent_calls.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

struct RecentCallsTest : testing::Test {
  RecentCalls calls;
  std::array<RecentCalls::Call, RecentCalls::kKept> read{};
};

TEST_F(RecentCallsTest, NothingWasStarted) {
  EXPECT_EQ(calls.read(read), 0U);
  calls.end(0);
  EXPECT_EQ(calls.read(read), 0U);
}

TEST_F(RecentCallsTest, TheNewestComesFirst) {
  const auto first = calls.start("broadcast", "default", 4);
  calls.start("send", "a name that is longer than what is kept", std::nullopt);
  calls.end(first);
  ASSERT_EQ(calls.read(read), 2U);
  EXPECT_STREQ(read[0].operation, "send");
  EXPECT_EQ(read[0].group.data(), std::string("a name that is longer t"));
  EXPECT_EQ(read[0].sequence, std::nullopt);
  EXPECT_FALSE(read[0].ended);
  EXPECT_STREQ(read[1].operation, "broadcast");
  EXPECT_STREQ(read[1].group.data(), "default");
  EXPECT_EQ(read[1].sequence, 4U);
  EXPECT_TRUE(read[1].ended);
}

TEST_F(RecentCallsTest, OldOnesMakeRoom) {
  const auto oldest = calls.start("barrier", "", 0);
  for (std::uint64_t i = 1; i <= 2 * RecentCalls::kKept; ++i) calls.start("barrier", "", i);
  calls.end(oldest);
  ASSERT_EQ(calls.read(read), RecentCalls::kKept);
  for (std::size_t i = 0; i < RecentCalls::kKept; ++i) {
    EXPECT_EQ(read[i].sequence, 2 * RecentCalls::kKept - i);
    EXPECT_FALSE(read[i].ended);
  }
}

TEST_F(RecentCallsTest, WhatIsReadIsWholeWhileOthersStart) {
  const auto name = [](std::uint64_t number) { return std::string(20, char('a' + number % 26)); };
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; !over; ++i) calls.start("barrier", name(i), i % 26);
    });
  }
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t count = calls.read(read);
    for (std::size_t c = 0; c < count; ++c) {
      ASSERT_EQ(read[c].group.data(), name(read[c].sequence.value()));
    }
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
