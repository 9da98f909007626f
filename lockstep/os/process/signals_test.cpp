#include "lockstep/os/process/signals.h"

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(Signals, HaveNamesAndNumbers) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(200), "signal 200");
  EXPECT_EQ(signal_number("SIGTERM"), SIGTERM);
  EXPECT_EQ(signal_number("USR1"), SIGUSR1);
  EXPECT_EQ(signal_number("SIGNAL"), std::nullopt);
  EXPECT_EQ(signal_number(""), std::nullopt);
}

TEST(Signals, OfBrokenPipesAreIgnoredUnlessTheProcessHandlesThem) {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  ignore_broken_pipes();
  EXPECT_EQ(::signal(SIGPIPE, [](int) {}), SIG_IGN);
  ignore_broken_pipes();
  EXPECT_NE(::signal(SIGPIPE, before), SIG_IGN);
}

TEST(Signals, EndAProcessThatNeitherHandlesNorIgnoresNorBlocksThem) {
  using enum SignalFate;
  EXPECT_EQ(fate_of(::getpid(), SIGUSR1), kEnds);
  const auto before = ::signal(SIGUSR1, [](int) {});
  EXPECT_EQ(fate_of(::getpid(), SIGUSR1), kSpares);
  ::signal(SIGUSR1, SIG_IGN);
  EXPECT_EQ(fate_of(::getpid(), SIGUSR1), kSpares);
  EXPECT_EQ(fate_of(::getpid(), SIGUSR2), kEnds);
  ::signal(SIGUSR1, before);
  {
    SignalFd blocked({SIGUSR1});
    EXPECT_EQ(fate_of(::getpid(), SIGUSR1), kBlocked);
  }
  EXPECT_EQ(fate_of(::getpid(), SIGWINCH), kSpares);
  EXPECT_EQ(fate_of(0x7ffffff0, SIGUSR1), kSpares);
}

TEST(SignalFd, DeliversSignalsAsValues) {
  SignalFd signals({SIGUSR1, SIGUSR2});
  EXPECT_EQ(signals.next(), std::nullopt);
  ::raise(SIGUSR2);
  EXPECT_EQ(signals.next(), SIGUSR2);
  EXPECT_EQ(signals.next(), std::nullopt);
}

TEST(SignalFd, LeavesIgnoredSignalsIgnored) {
  ::signal(SIGUSR1, SIG_IGN);
  {
    SignalFd signals({SIGUSR1});
    ::raise(SIGUSR1);
    EXPECT_EQ(signals.next(), std::nullopt);
  }
  ::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalFd, WhatComesTooLateEndsNothing) {
  {
    const SignalFd signals({SIGTERM});
    ASSERT_EQ(::raise(SIGTERM), 0);
  }
  sigset_t pending;
  ASSERT_EQ(::sigpending(&pending), 0);
  EXPECT_EQ(::sigismember(&pending, SIGTERM), 0);
}

}  // namespace
}  // namespace lockstep
