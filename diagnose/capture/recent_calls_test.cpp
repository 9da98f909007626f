#include "diagnose/capture/recent_calls.h"

#include <algorithm>
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
  calls.wait(first);
  calls.end(first);
  ASSERT_EQ(calls.read(read), 2U);
  EXPECT_STREQ(read[0].operation.data(), "send");
  EXPECT_EQ(read[0].group.data(), std::string("a name that is longer t"));
  EXPECT_EQ(read[0].sequence, std::nullopt);
  EXPECT_FALSE(read[0].waited);
  EXPECT_FALSE(read[0].ended);
  EXPECT_TRUE(read[1].waited);
  EXPECT_STREQ(read[1].operation.data(), "broadcast");
  EXPECT_LE(read[1].started_ns, read[0].started_ns);
  EXPECT_STREQ(read[1].group.data(), "default");
  EXPECT_EQ(read[1].sequence, 4U);
  EXPECT_TRUE(read[1].ended);
}

TEST_F(RecentCallsTest, AShorterTextLeavesNothingOfALongerOne) {
  for (std::size_t i = 0; i < RecentCalls::kKept; ++i) {
    const std::string text(200, 'x');
    const CallsAbout about(text);
    calls.start("all_reduce", "default", i);
  }
  for (const std::size_t length : {0, 1, 7, 8, 9, 94, 95, 96}) {
    const std::string text(length, 'y');
    const CallsAbout about(text);
    calls.start("all_reduce", "default", length);
    ASSERT_EQ(calls.read(std::span(read).first(1)), 1U);
    EXPECT_EQ(read[0].about.data(), std::string(std::min<std::size_t>(length, 95), 'y'));
  }
  calls.start("all_reduce", "default", 7);
  EXPECT_EQ(calls.read(std::span(read).first(1)), 1U);
  EXPECT_STREQ(read[0].about.data(), "");
}

TEST_F(RecentCallsTest, AnotherProcessReadsThoseOfItsOwnVersion) {
  calls.start("barrier", "default", 3);
  RecentCalls* const there = RecentCalls::at(&calls, sizeof calls);
  ASSERT_EQ(there, &calls);
  EXPECT_EQ(there->read(read), 1U);
  EXPECT_EQ(there->step(), -1);
  calls.note_step(7);
  EXPECT_EQ(there->step(), 7);
  EXPECT_EQ(RecentCalls::at(&calls, sizeof calls - 1), nullptr);
  std::vector<std::uint64_t> zeros(sizeof calls / sizeof(std::uint64_t));
  EXPECT_EQ(RecentCalls::at(zeros.data(), sizeof calls), nullptr);
}

TEST_F(RecentCallsTest, OldOnesMakeRoom) {
  const auto oldest = calls.start("barrier", "", 0);
  for (std::uint64_t i = 1; i < 2 * RecentCalls::kKept; ++i) calls.start("barrier", "", i);
  const auto newest = calls.start("barrier", "", 2 * RecentCalls::kKept);
  calls.end(newest);
  calls.end(oldest);  // Of the same slot.
  ASSERT_EQ(newest % RecentCalls::kKept, oldest % RecentCalls::kKept);
  ASSERT_EQ(calls.read(read), RecentCalls::kKept);
  for (std::size_t i = 0; i < RecentCalls::kKept; ++i) {
    EXPECT_EQ(read[i].sequence, 2 * RecentCalls::kKept - i);
    EXPECT_EQ(read[i].ended, i == 0);
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
