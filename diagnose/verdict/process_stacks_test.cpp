#include "diagnose/verdict/process_stacks.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

using testing::Contains;
using testing::HasSubstr;

[[gnu::noinline]] void say_and_wait(int fd) {
  if (::write(fd, "x", 1) != 1) ::_exit(1);
  for (;;) ::pause();
}

// Two threads that wait in a function of ours.
class ProcessStacksTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::thread([&] {
        ::prctl(PR_SET_NAME, "second\tone");
        say_and_wait(ends[1]);
      }).detach();
      say_and_wait(ends[1]);
    }
    ::close(ends[1]);
    char word[2];
    for (ssize_t got = 0; got < 2;) got += ::read(ends[0], word, 1);
    ::close(ends[0]);
  }

  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  ProcessStacks read() const {
    return read_stacks({child_}, Deadline::after(std::chrono::seconds(10))).at(0);
  }

  /// Threads need a moment to get to where they wait or stop, at first and after they were read.
  ProcessStacks read_until(char state) const {
    const auto deadline = Deadline::after(std::chrono::seconds(10));
    const auto is_in_state = [state](const ThreadStack& thread) { return thread.state == state; };
    ProcessStacks stacks = read();
    while (!std::ranges::all_of(stacks.threads, is_in_state) && !deadline.passed()) stacks = read();
    return stacks;
  }

  pid_t child_ = 0;
};

void expect_two_threads(const ProcessStacks& stacks, pid_t main, char state) {
  EXPECT_EQ(stacks.trouble, "");
  ASSERT_EQ(stacks.threads.size(), 2U);
  EXPECT_EQ(stacks.threads[0].id, main);
  EXPECT_EQ(stacks.threads[1].name, "second one");
  for (const ThreadStack& thread : stacks.threads) {
    EXPECT_EQ(thread.state, state);
    EXPECT_THAT(stack_lines(thread.frames), Contains(HasSubstr("say_and_wait")));
  }
}

TEST_F(ProcessStacksTest, AllThreadsWithTheirCalls) {
  expect_two_threads(read_until('S'), child_, 'S');
  expect_two_threads(read_until('S'), child_, 'S');  // It continues as before.
}

TEST_F(ProcessStacksTest, OfAStoppedProcessWhichStaysStopped) {
  ::kill(child_, SIGSTOP);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED), 0);
  expect_two_threads(read_until('T'), child_, 'T');
  expect_two_threads(read_until('T'), child_, 'T');
}

TEST_F(ProcessStacksTest, WhatThereIsNot) {
  const auto stacks = read_stacks({child_, 0x7ffffff0}, Deadline::after(std::chrono::seconds(10)));
  ASSERT_EQ(stacks.size(), 2U);
  EXPECT_EQ(stacks[0].threads.size(), 2U);
  EXPECT_TRUE(stacks[1].threads.empty());
  EXPECT_NE(stacks[1].trouble, "");
}

TEST_F(ProcessStacksTest, TheDeadlineHasPassed) {
  const auto stacks = read_stacks({child_}, Deadline::after(std::chrono::seconds(0)));
  ASSERT_EQ(stacks.size(), 1U);
  EXPECT_EQ(stacks[0].trouble, "reading it timed out");
}

// Whatever the helper is at when it is given up.
TEST_F(ProcessStacksTest, AProcessGoesOnWhereverReadingItTimesOut) {
  for (int turn = 0; turn < 300; ++turn) {
    read_stacks({child_}, Deadline::after(std::chrono::milliseconds(turn % 15)));
  }
  expect_two_threads(read_until('S'), child_, 'S');
}

}  // namespace
}  // namespace lockstep
