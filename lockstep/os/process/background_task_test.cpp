#include "lockstep/os/process/background_task.h"

#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(BackgroundTask, RunsBesideItsCallerAndIsWaitedFor) {
  BackgroundTask task("count");
  std::mutex mutex;
  std::condition_variable changed;
  bool may_go_on = false;
  int done = 0;
  task.start([&](const std::stop_token&) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return may_go_on; });
    ++done;
  });
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(done, 0);
    may_go_on = true;
  }
  changed.notify_all();
  task.start([&](const std::stop_token&) { EXPECT_EQ(done++, 1); });
  task.wait();
  EXPECT_EQ(done, 2);
}

TEST(BackgroundTask, AnErrorIsThrownOnceByTheNextCall) {
  BackgroundTask task("fail");
  const auto fail = [](const std::stop_token&) { throw UsageError("no"); };
  task.start(fail);
  task.finish();
  EXPECT_TRUE(task.has_failed());
  bool is_run = false;
  EXPECT_THROW(task.start([&](const std::stop_token&) { is_run = true; }), UsageError);
  task.wait();
  EXPECT_FALSE(is_run);
  task.start(fail);
  EXPECT_THROW(task.wait(), UsageError);
  task.wait();
}

TEST(BackgroundTask, AnErrorThatNobodyTookIsLogged) {
  ::testing::internal::CaptureStderr();
  {
    BackgroundTask task("write it");
    task.start([](const std::stop_token&) { throw UsageError("no space"); });
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("write it: no space"), std::string::npos) << log;
}

TEST(BackgroundTask, TheDestructorStopsWhatWaits) {
  bool is_stopped = false;
  {
    BackgroundTask task("wait");
    task.start([&](const std::stop_token& stop) {
      std::mutex mutex;
      std::condition_variable_any never;
      std::unique_lock lock(mutex);
      never.wait(lock, stop, [] { return false; });
      is_stopped = true;
    });
  }
  EXPECT_TRUE(is_stopped);
}

TEST(BackgroundTask, TakesNoSignalsFromTheProgram) {
  BackgroundTask task("look");
  sigset_t blocked;
  task.start([&](const std::stop_token&) { ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked); });
  task.wait();
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
  EXPECT_EQ(sigismember(&blocked, SIGSEGV), 0);
  sigset_t own;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGTERM), 0);
}

}  // namespace
}  // namespace lockstep
