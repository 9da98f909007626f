#include "launcher/supervise/group_guard.h"

#include <chrono>
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/supervise/job_directory.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{40};

// A process of the job in a session of its own, which the guard was not told of. It holds the pipe
// open for writing until it ends.
void start_stranger(const std::string& mark, int held_fd) {
  const pid_t pid = ::fork();
  if (pid != 0) return;
  ::setsid();
  ::dup2(held_fd, STDOUT_FILENO);  // which exec leaves open
  std::string line = mark;
  char* const environment[] = {line.data(), nullptr};
  const char* const words[] = {"/bin/sleep", "600", nullptr};
  ::execve(words[0], const_cast<char* const*>(words), environment);
  ::_exit(1);
}

TEST(GroupGuard, EndsWhatAKilledLauncherHadStartedAndNotYetAnnounced) {
  const std::string mark = concat("LOCKSTEP_JOB=group-guard-test-", ::getpid());
  Pipe alive = make_pipe();
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    GroupGuard guard(mark, {}, {});
    start_stranger(mark, alive.write_end.get());
    ::raise(SIGKILL);
  }
  alive.write_end.reset();
  ASSERT_EQ(::waitpid(launcher, nullptr, 0), launcher);
  // The end of the pipe comes with the end of the last that holds it.
  char byte = 0;
  pollfd ready{alive.read_end.get(), POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
  ASSERT_EQ(::poll(&ready, 1, static_cast<int>(limit)), 1) << "it lives still: " << mark;
  EXPECT_EQ(::read(alive.read_end.get(), &byte, 1), 0);
}

TEST(GroupGuard, RemovesFilesOfThePrefixAlone) {
  namespace fs = std::filesystem;
  const TemporaryDirectory folder(fs::temp_directory_path(), "lockstep_test_");
  const fs::path mine = folder.path() / "job_7_abc";
  const fs::path other = folder.path() / "job_71_abc";
  {
    const GroupGuard guard("LOCKSTEP_JOB=none", {.folder = folder.path(), .prefix = "job_7_"}, {});
    fs::create_directories(mine / "inside");
    fs::create_directories(other);
  }
  EXPECT_FALSE(fs::exists(mine));
  EXPECT_TRUE(fs::exists(other));
}

// Of containers that share a folder for temporary files, as of this process: one pid, two jobs.
TEST(GroupGuard, LeavesTheFilesOfAnotherJobWhoseLauncherHasTheSamePid) {
  namespace fs = std::filesystem;
  const std::string mine = make_job_mark();
  const std::string other = make_job_mark();
  const LaunchOptions options;
  const TemporaryDirectory directory = make_job_directory(options, other);
  const TemporaryDirectory control(temporary_folder(), control_directory_prefix(other));
  const TemporaryDirectory own(temporary_folder(), control_directory_prefix(mine));
  { const GroupGuard guard("LOCKSTEP_JOB=none", guarded_files(options, mine), {}); }
  EXPECT_FALSE(fs::exists(own.path()));
  EXPECT_TRUE(fs::exists(directory.path()));
  EXPECT_TRUE(fs::exists(control.path()));
}

TEST(JobMark, OfAJobOfSeveralMachinesTellsTheJobOnEach) {
  LaunchOptions options{.run_id = "job"};
  EXPECT_EQ(make_job_mark(options).find('.'), std::string::npos) << "it is the only one's";
  options.rendezvous = {.max_nodes = 2, .host = "first", .port = 29'400};
  const auto job = [](const LaunchOptions& of) {
    const std::string mark = make_job_mark(of);
    const std::size_t dot = mark.find('.');
    return dot == std::string::npos ? std::string() : mark.substr(dot);
  };
  const std::string here = job(options);
  EXPECT_GT(here.size(), 1U);
  EXPECT_NE(make_job_mark(options), make_job_mark(options));
  LaunchOptions other = options;
  other.rendezvous.node_rank = 1;
  other.rendezvous.is_host = false;
  EXPECT_EQ(job(other), here) << "on another machine";
  other.run_id = "another";
  EXPECT_NE(job(other), here);
  other = options;
  other.rendezvous.port = 29'401;
  EXPECT_NE(job(other), here);
}

TEST(JobDirectory, OfAControlSocketTellsTheLauncher) {
  const TemporaryDirectory control(temporary_folder(), control_directory_prefix(make_job_mark()));
  EXPECT_EQ(launcher_of_control_directory(control.path().filename().string()), ::getpid());
  for (const char* const name :
       {"lockstep_7-8_x", "lockstep_7_control_x", "lockstep_x-8_control_x", "lockstep_", "7-8"}) {
    EXPECT_FALSE(launcher_of_control_directory(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep
