#include "lockstep/os/process/caught_signals.h"

#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int kPatienceMs = 30'000;

TEST(CaughtSignals, AreNotedWhicheverThreadGetsThem) {
  CaughtSignals signals({SIGUSR1, SIGUSR2});
  EXPECT_EQ(signals.next(), std::nullopt);
  std::thread([] { ::pthread_kill(::pthread_self(), SIGUSR2); }).join();
  pollfd ready{signals.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, kPatienceMs), 1);
  EXPECT_EQ(signals.next(), SIGUSR2);
  ::raise(SIGUSR1);
  EXPECT_EQ(signals.next(), SIGUSR1);
}

TEST(CaughtSignals, EndTheProcessAsBeforeOnceItIsGone) {
  { const CaughtSignals signals({SIGUSR1}); }
  EXPECT_EXIT(::raise(SIGUSR1), testing::KilledBySignal(SIGUSR1), "");
}

TEST(CaughtSignals, DoNothingOnceItIsGoneWhereThatIsWished) {
  {
    CaughtSignals signals({SIGUSR1});
    signals.leave_ignored();
  }
  ::raise(SIGUSR1);
  ::signal(SIGUSR1, SIG_DFL);
}

TEST(CaughtSignals, LeaveAloneWhatTheProgramIgnoresOrHandles) {
  ::signal(SIGUSR1, SIG_IGN);
  static int handled = 0;
  ::signal(SIGUSR2, [](int) { ++handled; });
  CaughtSignals signals({SIGUSR1, SIGUSR2});
  ::raise(SIGUSR1);
  ::raise(SIGUSR2);
  EXPECT_EQ(signals.next(), std::nullopt);
  EXPECT_EQ(handled, 1);
  for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
}

TEST(CaughtSignals, ASecondObjectIsRefused) {
  const CaughtSignals signals({SIGUSR1});
  EXPECT_THROW(CaughtSignals({SIGUSR2}), UsageError);
}

}  // namespace
}  // namespace lockstep
