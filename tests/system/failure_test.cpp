// `lockstep run` when something goes wrong: bad input, failing workers, signals, a killed launcher.
#include <csignal>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct FailureTest : testing::Test {
  TemporaryDirectory directory{fs::temp_directory_path(), "lockstep_test_"};

  std::string path(const std::string& name) const { return (directory.path() / name).string(); }

  // A script's line that makes the worker's pid known.
  std::string tell_pid() const {
    return "echo $$ > " + path("pid.$RANK") + ".new; mv " + path("pid.$RANK") + ".new " +
           path("pid.$RANK") + "; ";
  }

  bool told(int rank) const { return fs::exists(path(concat("pid.", rank))); }
  pid_t pid_of(int rank) const { return std::stoi(read_text(path(concat("pid.", rank)))); }
};

// Control groups that a launcher has made; none where none may be made.
int groups_of(pid_t launcher) {
  const fs::path place = place_for_control_group("any");
  if (place.empty()) return 0;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(place.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(concat("lockstep-", launcher, "-"))) ++count;
  }
  return count;
}

// One line, with what it must say, and nothing started.
void expect_refused(const std::vector<std::string>& arguments, int status,
                    const std::string& part) {
  const auto result = run_lockstep(arguments);
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST_F(FailureTest, AWrongCommandLineIsRefusedInOneLine) {
  expect_refused({}, 2, "no command given");
  expect_refused({"rnu"}, 2, "did you mean run?");
  expect_refused({"--nproc-per-node=2", "x"}, 2, "flags of a command follow it");
  expect_refused({"run"}, 2, "no program given");
  expect_refused({"run", "--nproc-per-mode=2", "echo"}, 2, "did you mean --nproc-per-node?");
  expect_refused({"run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1", "echo"}, 2,
                 "LOCKSTEP_JOB_SECRET");
  expect_refused({"run", "--node-rank=3", "echo"}, 2, "node ranks are 0 to 0");
  expect_refused({"run", "--numa-binding=numa", "echo"}, 2, "core-complex");
  expect_refused({"run", "--rdzv=c10d", "echo"}, 2, "may be any of --rdzv-id, --rdzv-backend");
  expect_refused({"env", "x"}, 2, "not expected: x");
  expect_refused({"env", "--x"}, 2, "unknown flag --x");
}

TEST_F(FailureTest, ClosedStandardStreamsLeadNowhere) {
  // A launcher with all three closed, started by one that has them.
  const auto result = run_lockstep(run_script(
      {}, concat("exec ", LOCKSTEP_BINARY, " run --nproc-per-node=2 sh -c '",
                 "for fd in 0 1 2; do all=$all$(readlink /proc/$$/fd/$fd); done; echo $all > ",
                 path("streams.$RANK"), "' <&- >&- 2>&-")));
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* rank : {"0", "1"}) {
    EXPECT_EQ(read_text(path(concat("streams.", rank))), "/dev/null/dev/null/dev/null\n");
  }
}

TEST_F(FailureTest, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* command : {"env", "ps --json", "--help", "help run", "help report"}) {
    const auto result =
        run_lockstep(run_script({}, concat(LOCKSTEP_BINARY, " ", command, " > /dev/full")));
    EXPECT_EQ(result.status, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("lockstep: write to stdout: ")) << command;
  }
}

TEST_F(FailureTest, AMissingFolderForTemporaryFilesIsNamed) {
  for (const char* command : {"run true", "ps"}) {
    const auto result =
        run_lockstep(run_script({}, concat("TMPDIR=/nowhere ", LOCKSTEP_BINARY, " ", command)));
    EXPECT_EQ(result.status, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("TMPDIR=/nowhere: No such file or directory; set TMPDIR"))
        << command;
  }
}

TEST_F(FailureTest, AProgramThatCannotRunIsNamed) {
  std::ofstream(path("data")) << "text\n";
  std::ofstream(path("no_format")) << "text\n";
  std::ofstream(path("no_interpreter")) << "#!/no/such/interpreter\n";
  fs::permissions(path("no_format"), fs::perms::owner_all);
  fs::permissions(path("no_interpreter"), fs::perms::owner_all);
  const std::string two = "--nproc-per-node=2";
  expect_refused({"run", two, "no_such_program"}, 127,
                 "'no_such_program' is in no directory of PATH");
  expect_refused({"run", two, "./no_such_program"}, 127, "no such program: ./no_such_program");
  expect_refused({"run", two, path("missing.py")}, 127, "cannot read " + path("missing.py"));
  expect_refused({"run", two, path("data")}, 126, "chmod +x " + path("data"));
  expect_refused({"run", two, directory.path().string()}, 126, "is a directory");
  expect_refused({"run", two, path("no_format")}, 126, "Exec format error");
  expect_refused({"run", two, path("no_interpreter")}, 127, "interpreter");
}

TEST_F(FailureTest, ATakenPortIsNamedBeforeWorkersStart) {
  const UniqueFd owner = bind_tcp("127.0.0.1", 0);
  ASSERT_EQ(::listen(owner.get(), 1), 0);
  const std::string port = std::to_string(bound_port(owner.get()));
  expect_refused({"run", "--master-port=" + port, "echo"}, 1, "port " + port);
  expect_refused({"run", "--standalone", "--master-port=" + port, "echo"}, 1, "port " + port);
  expect_refused({"run", "--rdzv-endpoint=127.0.0.1:" + port, "echo"}, 1, "port " + port);
}

TEST_F(FailureTest, ALogDirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(path("file"));
  expect_refused({"run", "--log-dir=" + path("file/logs"), "echo"}, 1, path("file/logs"));
}

TEST_F(FailureTest, TheExitCodeIsTheWorkers) {
  EXPECT_EQ(run_lockstep(run_script({"--nproc-per-node=2"}, "exit 0")).status, 0);
  EXPECT_EQ(run_lockstep(run_script({}, "exit 42")).status, 42);
  EXPECT_EQ(run_lockstep(run_script({}, "kill -SEGV $$")).status, 128 + SIGSEGV);
  EXPECT_EQ(run_lockstep(run_script({}, "kill -KILL $$")).status, 128 + SIGKILL);
}

TEST_F(FailureTest, TheFirstToFailIsNamedAndTheOthersAreStopped) {
  const auto result = run_lockstep(
      run_script({"--nproc-per-node=3"},
                 tell_pid() + "if [ $RANK = 1 ]; then while ! [ -e " + path("pid.0") + " -a -e " +
                     path("pid.2") +
                     " ]; do :; done; echo '{\"message\":{\"message\":\"ValueError: bad\"}}' "
                     "> $TORCHELASTIC_ERROR_FILE; exit 5; fi; exec sleep 1000"));
  EXPECT_EQ(result.status, 5);
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 1U) << result.err;
  EXPECT_EQ(failures[0].rank, 1);
  EXPECT_EQ(failures[0].local_rank, 1);
  EXPECT_EQ(failures[0].pid, pid_of(1));
  EXPECT_TRUE(failures[0].is_first);
  EXPECT_EQ(failures[0].how, "exited with code 5: ValueError: bad");
  EXPECT_THAT(result.err, HasSubstr("ranks 0, 2: stopped by SIGTERM\n"));
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(process_exists(pid_of(rank)));
}

TEST_F(FailureTest, AWorkerThatFollowsAnothersErrorIsNotNamedFirst) {
  // Rank 0 has reported its error and is still on its way out when rank 1 has already ended.
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2"},
      "report() { echo \"{\\\"message\\\":{\\\"message\\\":\\\"$1\\\",\\\"errorCode\\\":2}}\" "
      "> $TORCHELASTIC_ERROR_FILE; }; if [ $RANK = 0 ]; then report 'CorruptFile: cut short'; " +
          tell_pid() + "exec sleep 1000; fi; while ! [ -e " + path("pid.0") +
          " ]; do :; done; report 'PeerFailed: rank 0 failed to read it'; exit 1"));
  EXPECT_EQ(result.status, 2);
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 1U) << result.err;
  EXPECT_EQ(failures[0].pid, pid_of(0));
  EXPECT_TRUE(failures[0].is_first);
  EXPECT_EQ(failures[0].how, "failed: CorruptFile: cut short, then stopped by SIGTERM");
  EXPECT_THAT(result.err, HasSubstr("others: rank 1: exit code 1\n"));
}

TEST_F(FailureTest, AWorkerThatIgnoresSigtermIsKilled) {
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2", "--shutdown-timeout=0.2"},
      "[ $RANK = 0 ] && trap '' TERM; " + tell_pid() + "if [ $RANK = 1 ]; then while ! [ -e " +
          path("pid.0") + " ]; do :; done; exit 3; fi; exec sleep 1000"));
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 0: stopped by SIGKILL"));
  EXPECT_FALSE(process_exists(pid_of(0)));
}

TEST_F(FailureTest, AStoppedWorkerIsContinuedToEnd) {
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2"}, "if [ $RANK = 0 ]; then " + tell_pid() +
                                  "kill -STOP $$; fi; while ! grep -q '^State:.T' /proc/$(cat " +
                                  path("pid.0") + ")/status 2>/dev/null; do :; done; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 0: stopped by SIGTERM"));
}

TEST_F(FailureTest, WhatAWorkerStartedIsStoppedWithIt) {
  const auto result = run_lockstep(run_script({}, "sh -c 'echo $$ > " + path("pid.9") +
                                                      "; exec sleep 1000' & while ! [ -s " +
                                                      path("pid.9") + " ]; do :; done; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_FALSE(process_exists(pid_of(9)));
}

TEST_F(FailureTest, RestartsUntilItSucceedsOnAFreshPortEachTime) {
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2", "--max-restarts=3"},
      "[ $RANK = 0 ] && echo port $MASTER_PORT; [ $RANK = 1 ] && exit $((2 - "
      "$TORCHELASTIC_RESTART_COUNT)); exec sleep $((TORCHELASTIC_RESTART_COUNT < 2 ? 1000 : 0))"));
  EXPECT_EQ(result.status, 0) << result.err;
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 2U) << result.err;
  for (int restart = 1; restart <= 2; ++restart) {
    const ReportedFailure& failure = failures[static_cast<std::size_t>(restart - 1)];
    EXPECT_EQ(failure.rank, 1);
    EXPECT_EQ(failure.how, concat("exited with code ", 3 - restart));
    EXPECT_EQ(failure.restart, restart);
  }
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 2) << result.err;
}

TEST_F(FailureTest, RestartsAreLimited) {
  const auto result = run_lockstep(run_script(
      {"--max-restarts=2"}, "echo $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; exit 4"));
  EXPECT_EQ(result.status, 4);
  EXPECT_EQ(result.out, "0 2\n1 2\n2 2\n");
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 3U) << result.err;
  for (const ReportedFailure& failure : failures) EXPECT_EQ(failure.how, "exited with code 4");
  EXPECT_TRUE(failures[2].is_first);
}

TEST_F(FailureTest, SignalsReachTheWorkersAndStopTheJob) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const std::string name = ::sigabbrev_np(signal);
    fs::remove(path("pid.0"));
    fs::remove(path("pid.1"));
    LockstepProcess process(run_script({"--nproc-per-node=2", "--max-restarts=3"},
                                       "trap 'echo got " + name + "; exit 0' " + name + "; " +
                                           tell_pid() + "while :; do sleep 0.01; done"));
    ASSERT_TRUE(eventually([&] { return told(0) && told(1); }));
    process.signal(signal);
    const auto result = process.wait();
    EXPECT_EQ(result.status, 128 + signal);
    EXPECT_EQ(result.out, "got " + name + "\ngot " + name + "\n");
    EXPECT_THAT(result.err, HasSubstr("stopped by SIG" + name + "\n"));
    EXPECT_THAT(result.err, Not(HasSubstr("failed")));
  }
}

TEST_F(FailureTest, ASecondInterruptKillsAtOnce) {
  LockstepProcess process(run_script({"--nproc-per-node=2", "--shutdown-timeout=1000"},
                                     "trap '' INT TERM; " + tell_pid() + "exec sleep 1000"));
  ASSERT_TRUE(eventually([&] { return told(0) && told(1); }));
  process.signal(SIGINT);
  ASSERT_TRUE(
      eventually([&] { return process.err().find("SIGINT: stopping") != std::string::npos; }));
  EXPECT_TRUE(process_exists(pid_of(0)));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.status, 130);
  EXPECT_THAT(result.err, HasSubstr("was still running; killed by SIGKILL"));
  EXPECT_THAT(result.err, HasSubstr("stopped by SIGINT\n"));
}

TEST_F(FailureTest, AScriptsProgramMaySaveBeforeTheJobEnds) {
  // The shell in between ends at once; its child has the grace that the worker has.
  LockstepProcess process(run_script({}, "sh -c 'trap \"echo saved; exit 0\" TERM; " + tell_pid() +
                                             "while :; do sleep 0.01; done'; :"));
  ASSERT_TRUE(eventually([&] { return told(0); }));
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.status, 143);
  EXPECT_EQ(result.out, "saved\n");
}

TEST_F(FailureTest, BackgroundProcessesThatIgnoreSigintEndWithTheJob) {
  LockstepProcess process(run_script(
      {"--shutdown-timeout=1000"},
      "sleep 1000 & echo $! > " + path("child") + "; " + tell_pid() + "trap 'exit 0' INT; wait"));
  ASSERT_TRUE(eventually([&] { return told(0); }));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait().status, 130);
  EXPECT_FALSE(process_exists(std::stoi(read_text(path("child")))));
}

TEST_F(FailureTest, NothingOutlivesAKilledLauncher) {
  LockstepProcess process(run_script({"--nproc-per-node=2", "--tee=3", "--log-dir=" + path("logs")},
                                     "trap '' INT TERM HUP; sleep 1000 & echo $! > " +
                                         path("child.$RANK") + "; " + tell_pid() + "wait"));
  ASSERT_TRUE(eventually([&] { return told(0) && told(1); }));
  std::vector<pid_t> pids = {pid_of(0), pid_of(1)};
  for (int rank = 0; rank < 2; ++rank) {
    pids.push_back(std::stoi(read_text(path(concat("child.", rank)))));
  }
  process.signal(SIGKILL);
  EXPECT_EQ(process.wait().status, 137);
  for (const pid_t pid : pids) {
    EXPECT_TRUE(eventually([&] { return !process_exists(pid); })) << "pid " << pid << " is left";
  }
}

// A memory cgroup of version 1 of its own, where this system has them and lets us.
class MemoryGroup {
 public:
  explicit MemoryGroup(const std::string& limit) {
    std::error_code error;
    fs::create_directory(path_, error);
    std::ofstream(path_ / "memory.limit_in_bytes") << limit;
    works_ = !error && fs::exists(path_ / "memory.oom_control");
  }
  ~MemoryGroup() { ::rmdir(path_.c_str()); }
  bool works() const { return works_; }
  fs::path processes() const { return path_ / "cgroup.procs"; }

 private:
  fs::path path_ = fs::path("/sys/fs/cgroup/memory") / concat("lockstep_test_", ::getpid());
  bool works_ = false;
};

TEST_F(FailureTest, AWorkerKilledForWantOfMemoryIsReportedAsSuch) {
  const MemoryGroup group("200000000");
  if (!group.works()) GTEST_SKIP() << "no memory cgroup of version 1 that may be written to";
  // A launcher within the group, which a sanitizer makes larger than the worker: the kernel is to
  // choose the worker. tail keeps the last line, which has no end.
  const std::string worker = "echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero";
  const auto result = run_lockstep(
      run_script({}, concat("echo $$ > ", group.processes().string(), "; exec ", LOCKSTEP_BINARY,
                            " run --standalone sh -c '", worker, "'")));
  EXPECT_EQ(result.status, 137);
  EXPECT_THAT(result.err, HasSubstr("killed by SIGKILL: out of memory: its memory cgroup has a "
                                    "limit of 199 MB"));
}

// A line that starts a process in a session of its own, which ignores what it is told.
std::string start_daemon(const std::string& pid_file) {
  return "setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > " + pid_file + ".new; mv " + pid_file +
         ".new " + pid_file + "; while :; do sleep 1000; done' & until [ -e " + pid_file +
         " ]; do :; done; ";
}

TEST_F(FailureTest, ADaemonOfAWorkerEndsWithAJobThatFails) {
  const auto result = run_lockstep(run_script({}, start_daemon(path("daemon")) + "exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_FALSE(process_exists(std::stoi(read_text(path("daemon")))));
}

TEST_F(FailureTest, ADaemonWithoutTheWorkersEnvironmentEndsWithAJobThatFails) {
  const std::string file = path("daemon");
  const auto result = run_lockstep(run_script(
      {}, "setsid env -i sh -c 'trap \"\" TERM INT HUP; echo $$ > " + file + ".new; mv " + file +
              ".new " + file + "; while :; do sleep 1000; done' & until [ -e " + file +
              " ]; do :; done; exit 3"));
  EXPECT_EQ(result.status, 3);
  EXPECT_FALSE(process_exists(std::stoi(read_text(file))));
}

TEST_F(FailureTest, ADaemonOfAWorkerEndsBeforeTheRestart) {
  const auto result = run_lockstep(run_script(
      {"--max-restarts=1"}, "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then " +
                                start_daemon(path("daemon")) + "exit 3; fi; kill -0 $(cat " +
                                path("daemon") + ") && echo alive || echo gone"));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "gone\n");
}

TEST_F(FailureTest, AKilledLauncherLeavesNoDaemonAndNoDirectory) {
  fs::create_directory(path("tmp"));
  LockstepProcess process(
      run_script({}, start_daemon(path("daemon")) + tell_pid() + "exec sleep 1000"),
      {"TMPDIR=" + path("tmp")});
  ASSERT_TRUE(eventually([&] { return told(0); }));
  process.signal(SIGKILL);
  process.wait();
  const pid_t daemon = std::stoi(read_text(path("daemon")));
  EXPECT_TRUE(eventually([&] { return !process_exists(daemon); }));
  EXPECT_TRUE(eventually([&] { return fs::is_empty(path("tmp")); }));
}

TEST_F(FailureTest, AKilledLauncherLeavesNoDaemonThatHasForgottenTheJob) {
  const std::string probe = concat("lockstep-test-", ::getpid());
  const fs::path place = place_for_control_group(probe);
  if (!make_control_group(place).valid()) GTEST_SKIP() << "no control group may be made here";
  dissolve_control_group(place);
  const std::string file = path("daemon");
  LockstepProcess process(run_script({}, "setsid env -i sh -c 'trap \"\" TERM INT HUP; echo $$ > " +
                                             file + ".new; mv " + file + ".new " + file +
                                             "; while :; do sleep 1000; done' & exec sleep 1000"));
  ASSERT_TRUE(eventually([&] { return fs::exists(file); }));
  const pid_t daemon = std::stoi(read_text(file));
  const std::string group = read_text(concat("/proc/", daemon, "/cgroup"));
  EXPECT_THAT(group, HasSubstr(concat("/lockstep-", process.pid(), "-")));
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(eventually([&] { return !process_exists(daemon); }));
  EXPECT_TRUE(eventually([&] { return groups_of(process.pid()) == 0; }));
}

TEST_F(FailureTest, WhatTakesLongToDieLeavesNoControlGroup) {
  LockstepProcess process({"run", "--no-python", LOCKSTEP_TEST_PYTHON, "-c",
                           "import os, time; held = bytearray(os.urandom(4096)) * 400000; open('" +
                               path("told") + "', 'w').close(); time.sleep(1000)"});
  ASSERT_TRUE(eventually([&] { return fs::exists(path("told")); }));
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(eventually([&] { return groups_of(process.pid()) == 0; }));
}

TEST_F(FailureTest, WhatGoesOnStartingOthersLeavesNoControlGroup) {
  LockstepProcess process(run_script({}, "setsid sh -c 'echo $$ > " + path("pid") +
                                             "; while :; do sleep 0.01 & done' & while ! [ -s " +
                                             path("pid") + " ]; do :; done"));
  EXPECT_EQ(process.wait().status, 0);
  EXPECT_EQ(groups_of(process.pid()), 0);
  ::kill(std::stoi(read_text(path("pid"))), SIGKILL);
}

TEST_F(FailureTest, AFifoWhereAFileShouldBeHoldsNothingUp) {
  const auto result = run_lockstep({"run", "sh", "-c", "mkfifo $TORCHELASTIC_ERROR_FILE; exit 5"});
  EXPECT_EQ(result.status, 5);
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 1U) << result.err;
  EXPECT_EQ(failures[0].how, "exited with code 5");
}

TEST_F(FailureTest, ASecretThatCanBeGuessedOrReadIsNoted) {
  std::ofstream(path("secret")) << "swordfish\n";
  fs::permissions(path("secret"), fs::perms(0644));
  const auto result = run_lockstep({"run", "--secret-file=" + path("secret"), "true"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("note: the job's secret has 9 characters"));
  EXPECT_THAT(result.err, HasSubstr("note: others on this machine may read --secret-file="));
  fs::permissions(path("secret"), fs::perms(0600));
  std::ofstream(path("secret")) << "0123456789abcdef\n";
  EXPECT_EQ(run_lockstep({"run", "--secret-file=" + path("secret"), "true"}).err, "");
}

TEST_F(FailureTest, LogsAreForTheirUserAloneAndStayInTheirFolder) {
  const std::string logs = path("logs");
  const auto result = run_lockstep(
      {"run", "--log-dir=" + logs, "--redirects=3", "--rdzv-id=../../out", "echo", "secret"});
  EXPECT_EQ(result.status, 0) << result.err;
  ASSERT_EQ(std::distance(fs::directory_iterator(logs), fs::directory_iterator()), 1);
  const fs::path job = fs::directory_iterator(logs)->path();
  EXPECT_TRUE(job.filename().string().starts_with(".._.._out_"));
  EXPECT_EQ(fs::status(job).permissions(), fs::perms::owner_all);
  EXPECT_EQ(read_text(job / "attempt_0/0/stdout.log"), "secret\n");
}

TEST_F(FailureTest, AJobThatEndsWellLeavesNoControlGroupAndItsDaemons) {
  const std::string file = path("daemon");
  LockstepProcess process(run_script({}, "setsid sleep 1000 & echo $! > " + file));
  EXPECT_EQ(process.wait().status, 0);
  const pid_t daemon = std::stoi(read_text(file));
  EXPECT_TRUE(process_exists(daemon));
  ::kill(daemon, SIGKILL);
  EXPECT_EQ(groups_of(process.pid()), 0);
}

TEST_F(FailureTest, AKilledLauncherLeavesNoHelper) {
  LockstepProcess process(
      run_script({"--tee=3", "--log-dir=" + path("logs")}, tell_pid() + "exec sleep 1000"));
  ASSERT_TRUE(eventually([&] { return told(0); }));
  const std::string children =
      read_text(concat("/proc/", process.pid(), "/task/", process.pid(), "/children"));
  std::istringstream list(children);
  std::set<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.insert(pid);
  EXPECT_GE(pids.size(), 3U) << children;  // The worker, the guard and the tail.
  process.signal(SIGKILL);
  process.wait();
  for (const pid_t pid : pids) {
    EXPECT_TRUE(eventually([&] { return !process_exists(pid); })) << "pid " << pid << " is left";
  }
}

}  // namespace
}  // namespace lockstep
