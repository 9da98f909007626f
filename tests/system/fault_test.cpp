// `lockstep run` under the faults that a machine or a user brings: several at once, again and
// again, too little of something.
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct FaultTest : testing::Test {
  TemporaryDirectory directory{fs::temp_directory_path(), "lockstep_test_"};

  std::string path(const std::string& name) const { return (directory.path() / name).string(); }

  // A worker of the first generation makes its pid known and waits; later ones end well.
  std::string wait_to_be_killed() const {
    const std::string file = path("pid.$RANK");
    return "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; echo $$ > " + file + ".new; mv " + file +
           ".new " + file + "; exec sleep 1000";
  }
  bool told(int rank) const { return fs::exists(path(concat("pid.", rank))); }
  pid_t pid_of(int rank) const { return std::stoi(read_text(path(concat("pid.", rank)))); }
};

TEST_F(FaultTest, SeveralWorkersKilledInOneMomentAreOneRestart) {
  for (const std::vector<int>& victims : {std::vector{1, 3}, std::vector{0, 1, 2, 3}}) {
    LockstepProcess process(
        run_script({"--nproc-per-node=4", "--max-restarts=3"}, wait_to_be_killed()));
    ASSERT_TRUE(eventually([&] { return told(0) && told(1) && told(2) && told(3); }));
    for (const int rank : victims) ::kill(pid_of(rank), SIGKILL);
    const auto result = process.wait();
    EXPECT_EQ(result.status, 0) << result.err;
    const auto failures = failures_in(result.err);
    ASSERT_EQ(failures.size(), 1U) << result.err;
    EXPECT_THAT(victims, testing::Contains(failures[0].rank));
    EXPECT_EQ(failures[0].restart, 1);
    for (int rank = 0; rank < 4; ++rank) fs::remove(path(concat("pid.", rank)));
  }
}

TEST_F(FaultTest, AnotherFailureDuringTheRestartIsAnotherRestart) {
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2", "--max-restarts=5"},
      "[ $RANK = $((TORCHELASTIC_RESTART_COUNT % 2)) ] && [ $TORCHELASTIC_RESTART_COUNT -lt 4 ] && "
      "kill -9 $$; exec sleep $((TORCHELASTIC_RESTART_COUNT < 4 ? 1000 : 0))"));
  EXPECT_EQ(result.status, 0) << result.err;
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 4U) << result.err;
  EXPECT_EQ(failures.back().restart, 4);
}

TEST_F(FaultTest, ThreeFailuresAtTheSamePlaceEndTheJob) {
  const auto result = run_lockstep(
      run_script({"--max-restarts=10"},
                 "echo attempt; echo '{\"message\":{\"message\":\"no data at step 7\"}}' > "
                 "$TORCHELASTIC_ERROR_FILE; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "attempt\nattempt\nattempt\n");
  EXPECT_EQ(failures_in(result.err).at(2).how, "exited with code 3: no data at step 7");
  EXPECT_THAT(result.err, HasSubstr("no restart: same failure 3 times in a row\n"));
}

TEST_F(FaultTest, TheSameFailureOfOtherRanksEndsTheJob) {
  const auto result = run_lockstep(
      run_script({"--max-restarts=10", "--nproc-per-node=4"},
                 "[ $RANK = $TORCHELASTIC_RESTART_COUNT ] || exec sleep 100; echo attempt; "
                 "echo \"{\\\"message\\\":{\\\"message\\\":\\\"rank $RANK: no file "
                 "digits.csv\\\"}}\" > $TORCHELASTIC_ERROR_FILE; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "attempt\nattempt\nattempt\n");
  EXPECT_EQ(failures_in(result.err).at(2).rank, 2) << result.err;
}

TEST_F(FaultTest, ThreeEqualExitsSoonAfterTheStartEndTheJob) {
  const auto result = run_lockstep(run_script({"--max-restarts=10"}, "echo attempt; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "attempt\nattempt\nattempt\n");
}

TEST_F(FaultTest, AWorkerThatSomebodyKillsIsStartedAsOftenAsWanted) {
  const auto result = run_lockstep(run_script(
      {"--max-restarts=5"}, "[ $TORCHELASTIC_RESTART_COUNT = 5 ] || kill -9 $$; echo done"));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "done\n");
}

TEST_F(FaultTest, TooFewOpenFilesAreSaidWithTheCure) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer looks at memory by way of files of its own";
#endif
  for (const char* limit : {"6", "7", "8"}) {
    const auto result =
        run_lockstep(run_script({}, concat("ulimit -n ", limit, "; exec ", LOCKSTEP_BINARY,
                                           " run --nproc-per-node=4 true")));
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err,
                HasSubstr("Too many open files; raise the limit on open files (ulimit -n)"));
  }
}

// A cgroup of version 1 that limits the number of processes, where this system has them and lets
// us.
struct ProcessGroupLimit {
  explicit ProcessGroupLimit(const std::string& most) {
    std::error_code error;
    fs::create_directory(path, error);
    std::ofstream(path / "pids.max") << most;
    works = !error && fs::exists(path / "pids.max");
  }
  ~ProcessGroupLimit() { ::rmdir(path.c_str()); }

  fs::path path = fs::path("/sys/fs/cgroup/pids") / concat("lockstep_test_", ::getpid());
  bool works = false;
};

TEST_F(FaultTest, AProcessThatCannotBeStartedIsSaidWithTheCure) {
  for (const char* most : {"1", "2", "3", "5"}) {
    const ProcessGroupLimit group(most);
    if (!group.works) GTEST_SKIP() << "no cgroup of version 1 for processes that may be written to";
    // The shell becomes the launcher, which counts as one, and its guard as another.
    LockstepProcess process(
        run_script({}, concat("echo $$ > ", (group.path / "cgroup.procs").string(), "; exec ",
                              LOCKSTEP_BINARY, " run --nproc-per-node=4 sleep 1000")));
    const auto result = process.wait();
    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_THAT(result.err,
                HasSubstr("Resource temporarily unavailable; see the limits on processes"));
    EXPECT_TRUE(eventually([&] { return read_text(group.path / "cgroup.procs").empty(); }));
  }
}

// A file system of a few pages, where we may mount one.
struct SmallDisk {
  explicit SmallDisk(const std::string& where) : path(where) {
    fs::create_directory(path);
    works = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=128k") == 0;
  }
  ~SmallDisk() {
    if (works) ::umount2(path.c_str(), MNT_DETACH);
  }

  std::string path;
  bool works = false;
};

TEST_F(FaultTest, AFullDiskForLogsDoesNotEndTheJob) {
  const SmallDisk disk(path("disk"));
  if (!disk.works) GTEST_SKIP() << "mounting a file system needs root";
  for (const char* streams : {"--redirects=3", "--tee=3"}) {
    const auto result = run_lockstep(run_script(
        {"--nproc-per-node=2", "--log-dir=" + disk.path, streams},
        "i=0; while [ $i -lt 20 ]; do head -c 16384 /dev/zero 2>/dev/null; i=$((i + 1)); done; "
        "echo ok > " +
            path("done.$RANK")));
    EXPECT_EQ(result.status, 0) << result.err;
    for (const char* rank : {"0", "1"}) {
      EXPECT_EQ(read_text(path(concat("done.", rank))), "ok\n") << streams;
      fs::remove(path(concat("done.", rank)));
    }
    for (const auto& entry : fs::directory_iterator(disk.path)) fs::remove_all(entry.path());
  }
}

}  // namespace
}  // namespace lockstep
