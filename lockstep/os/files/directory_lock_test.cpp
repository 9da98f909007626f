#include "lockstep/os/files/directory_lock.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep {
namespace {

class DirectoryLockTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "run" / "snapshots"; }

  // A process of another job, which has the directory until it is killed.
  pid_t start_owner(const char* job) const {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t owner = ::fork();
    if (owner == 0) {
      ::setenv(env::kJobMark.name, job, 1);
      const auto lock = DirectoryLock::take(path());
      const bool has_told = ::write(ends[1], ".", 1) == 1;
      while (has_told) ::pause();
      ::_exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
    return owner;
  }
  static void kill(pid_t owner) {
    ::kill(owner, SIGKILL);
    ::waitpid(owner, nullptr, 0);
  }
  // By any process.
  bool is_locked() const {
    const UniqueFd fd(::open((path() / ".lock").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(fd.valid());
    return ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
  }
  std::string error() const {
    try {
      DirectoryLock::take(path());
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "directory-lock-"};
};

TEST_F(DirectoryLockTest, AnotherJobIsRefusedAsLongAsTheOwnerLives) {
  const pid_t owner = start_owner("another job");
  EXPECT_NE(error().find("is in use by another job: process " + std::to_string(owner) + " on "),
            std::string::npos)
      << error();
  kill(owner);
  EXPECT_EQ(error(), "") << "the kernel has released it";
}

TEST_F(DirectoryLockTest, OneProcessMayTakeItSeveralTimes) {
  auto first = DirectoryLock::take(path());
  const auto second = DirectoryLock::take(path());
  EXPECT_EQ(first, second);
  first->check();
}

TEST_F(DirectoryLockTest, ProcessesOfOneJobDoNotExcludeEachOther) {
  ::setenv(env::kJobMark.name, "one job", 1);
  const pid_t owner = start_owner("one job");
  const auto lock = DirectoryLock::take(path(), std::chrono::milliseconds(100));
  lock->check();
  kill(owner);
  ::unsetenv(env::kJobMark.name);
}

TEST_F(DirectoryLockTest, MachinesOfOneJobDoNotExcludeEachOther) {
  ::setenv(env::kJobMark.name, "7-1.job", 1);
  const pid_t owner = start_owner("8-2.job");
  DirectoryLock::take(path(), std::chrono::milliseconds(100))->check();
  ::setenv(env::kJobMark.name, "7-1.another", 1);
  EXPECT_NE(error().find("is in use by another job"), std::string::npos) << error();
  kill(owner);
  ::unsetenv(env::kJobMark.name);
}

TEST_F(DirectoryLockTest, WaitsForAProcessOfItsJobThatEnds) {
  ::setenv(env::kJobMark.name, "one job", 1);
  const pid_t owner = start_owner("one job");
  std::shared_ptr<DirectoryLock> lock;
  std::thread waiting([&] { lock = DirectoryLock::take(path(), std::chrono::minutes(1)); });
  kill(owner);
  waiting.join();
  EXPECT_TRUE(is_locked());
  ::unsetenv(env::kJobMark.name);
}

TEST_F(DirectoryLockTest, ALockThatWasNotToBeHadIsTakenOnceItIsFree) {
  ::setenv(env::kJobMark.name, "one job", 1);
  const pid_t owner = start_owner("one job");
  const auto lock = DirectoryLock::take(path(), std::chrono::milliseconds(0));
  kill(owner);
  EXPECT_FALSE(is_locked());
  lock->check();
  EXPECT_TRUE(is_locked());
  ::unsetenv(env::kJobMark.name);
}

TEST_F(DirectoryLockTest, OneThatWasTakenOverWhereNoLockReachesIsTold) {
  const auto lock = DirectoryLock::take(path());
  lock->check();
  std::ofstream(path() / ".lock") << "another job\nprocess 7 on another machine\n";
  EXPECT_THROW(lock->check(), UsageError);
  std::filesystem::remove_all(path());
  lock->check();
}

TEST_F(DirectoryLockTest, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(DirectoryLock::take("/proc/none/snapshots"), SystemError);
}

}  // namespace
}  // namespace lockstep
