// `lockstep run` when all goes well: what workers get, and what becomes of their output.
#include <csignal>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

struct LaunchTest : testing::Test {
  TemporaryDirectory directory{fs::temp_directory_path(), "lockstep_test_"};

  std::string path(const std::string& name) const { return (directory.path() / name).string(); }
};

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

TEST_F(LaunchTest, EveryRankGetsItsEnvironment) {
  const auto result = run_lockstep(
      run_script({"--standalone", "--nproc-per-node=3", "--role=trainer", "--rdzv-id=job"},
                 "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $ROLE_NAME $MASTER_ADDR "
                 "$TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE"));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("0 0 3 3 trainer 127.0.0.1 job False",
                                                         "1 1 3 3 trainer 127.0.0.1 job False",
                                                         "2 2 3 3 trainer 127.0.0.1 job False"));
  EXPECT_EQ(result.err, "");
}

TEST_F(LaunchTest, OnlyRankZeroInheritsTheStoresSocket) {
  const auto result = run_lockstep(
      run_script({"--nproc-per-node=2"},
                 "fd=$LOCKSTEP_STORE_LISTEN_FD; test -n \"$fd\" && readlink /proc/self/fd/$fd; "
                 "echo rank $RANK fd ${fd:+given}"));
  EXPECT_THAT(result.out, HasSubstr("socket:["));
  EXPECT_THAT(result.out, HasSubstr("rank 0 fd given\n"));
  EXPECT_THAT(result.out, HasSubstr("rank 1 fd\n"));
}

TEST_F(LaunchTest, ArgumentsReachTheProgramUntouched) {
  const auto result =
      run_lockstep(run_script({"--nproc_per_node", "2"}, "echo \"$(printf '[%s]' \"$@\")\"",
                              {"${local_rank}", "--nproc-per-node=9", "", "a b", "--help", "--"}));
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("[0][--nproc-per-node=9][][a b][--help][--]",
                                   "[1][--nproc-per-node=9][][a b][--help][--]"));
}

// Of rank 0, which leaves a fork server: a later worker may have been executed, and ends as any
// program.
std::vector<std::string> last_lines_of_rank_0(const std::string& program) {
  const auto result = run_lockstep({"run", "--standalone", "--nproc-per-node=2", program});
  EXPECT_EQ(result.status, 0) << result.err;
  std::vector<std::string> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("0 ")) lines.push_back(line.substr(2));
  }
  return lines;
}

TEST_F(LaunchTest, AtTheEndOfAWorkerItsOwnDestructorsRunButNotThoseOfLibTorch) {
  std::vector<std::string> own{"end of main", "exit handler", "static object", "end of program",
                               "another stream"};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_THAT(last_lines_of_rank_0(LOCKSTEP_END_WORKER), IsSupersetOf(own));
#else
  EXPECT_THAT(last_lines_of_rank_0(LOCKSTEP_END_WORKER), UnorderedElementsAreArray(own));
#endif
  own.emplace_back("destructor of a library");
  EXPECT_THAT(last_lines_of_rank_0(LOCKSTEP_END_WORKER_OF_UNKNOWN), UnorderedElementsAreArray(own));
}

TEST_F(LaunchTest, VariablesAreDefaultsOfFlags) {
  const auto arguments = run_script({}, "echo $WORLD_SIZE $ROLE_NAME");
  EXPECT_EQ(run_lockstep(arguments, {"PET_NPROC_PER_NODE=2", "PET_ROLE=a"}).out, "2 a\n2 a\n");
  EXPECT_EQ(
      run_lockstep(run_script({"--nproc-per-node=1"}, "echo $WORLD_SIZE"), {"PET_NPROC_PER_NODE=2"})
          .out,
      "1\n");
}

TEST_F(LaunchTest, TheMissingTimerOfTorchrunIsTold) {
  const auto told = run_lockstep({"run", "true"}, {"TORCHELASTIC_ENABLE_FILE_TIMER=1"});
  EXPECT_EQ(told.status, 0);
  EXPECT_THAT(told.err, HasSubstr("FileTimerClient"));
  EXPECT_EQ(run_lockstep({"run", "true"}, {"TORCHELASTIC_ENABLE_FILE_TIMER=0"}).err, "");
}

TEST_F(LaunchTest, ScriptsInPythonAreRunByPython) {
  std::ofstream(path("program.py")) << "import os, sys; print(os.environ['RANK'], sys.argv[1:])\n";
  const auto result = run_lockstep({"run", path("program.py"), "a"}, {"PYTHON_EXEC=python3"});
  EXPECT_EQ(result.out, "0 ['a']\n") << result.err;
}

TEST_F(LaunchTest, LogsHaveTorchrunsLayout) {
  const auto result = run_lockstep(
      run_script({"--nproc-per-node=2", "--rdzv-id=my/job", "--log-dir=" + path("logs"), "-r", "3"},
                 "echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE >> " +
                     path("error_files")));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "") << "redirected output was shown";
  std::vector<fs::path> jobs(fs::directory_iterator(path("logs")), {});
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_THAT(jobs[0].filename().string(), testing::StartsWith("my_job_"));
  EXPECT_THAT(result.err, HasSubstr(jobs[0].string()));
  for (int rank = 0; rank < 2; ++rank) {
    const fs::path worker = jobs[0] / "attempt_0" / concat(rank);
    EXPECT_EQ(read_text(worker / "stdout.log"), concat("out ", rank, "\n"));
    EXPECT_EQ(read_text(worker / "stderr.log"), concat("err ", rank, "\n"));
    EXPECT_THAT(read_text(path("error_files")), HasSubstr((worker / "error.json").string()));
  }
}

TEST_F(LaunchTest, TeeMarksEachLineWithItsRank) {
  const auto result =
      run_lockstep(run_script({"--nproc-per-node=2", "--log-dir=" + path("logs"), "--tee=0:3,1:1"},
                              "echo one $RANK; echo two $RANK >&2; printf last"));
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[default0]:one 0", "[default0]:last",
                                                         "[default1]:one 1", "[default1]:last"));
  EXPECT_THAT(result.err, HasSubstr("[default0]:two 0\n"));
  EXPECT_THAT(result.err, HasSubstr("two 1\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("[default1]:two 1")));
}

TEST_F(LaunchTest, TheFilterHidesOtherRanks) {
  const auto result =
      run_lockstep(run_script({"--nproc-per-node=3", "--local-ranks-filter=1"}, "echo $RANK"));
  EXPECT_EQ(result.out, "1\n");
}

TEST_F(LaunchTest, LeavesNothingInTheTemporaryDirectory) {
  const auto result = run_lockstep(run_script({"--nproc-per-node=2"},
                                              "test -d \"$(dirname "
                                              "$TORCHELASTIC_ERROR_FILE)\" && ls -ld $TMPDIR/*"),
                                   {"TMPDIR=" + directory.path().string()});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("drwx------"));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

// Runs two workers that each write more than a pipe holds, with their tee read by `reader`.
std::string run_into_reader(const LaunchTest& test, const std::string& reader) {
  std::ofstream(test.path("job.sh"))
      << "i=0; while [ $i -lt 9000 ]; do echo a line of output $i; i=$((i+1)); done; echo done > "
      << test.path("done") << ".$RANK\n";
  const std::string command =
      concat(LOCKSTEP_BINARY " run --nproc-per-node=2 --tee=3 --log-dir=", test.path("logs"),
             " sh ", test.path("job.sh"), " 2> ", test.path("err"), " | ", reader);
  std::ofstream(test.path("pipeline.sh")) << command << "\n";
  EXPECT_EQ(std::system(concat("timeout 40 sh ", test.path("pipeline.sh")).c_str()), 0);
  return read_text(test.path("done.0")) + read_text(test.path("done.1"));
}

TEST_F(LaunchTest, AConsoleThatIsClosedDoesNotEndTheJob) {
  EXPECT_EQ(run_into_reader(*this, "head -1 > /dev/null"), "done\ndone\n");
}

TEST_F(LaunchTest, AConsoleThatIsSlowDoesNotDelayTheWorkers) {
  const std::string reader = concat("sh -c 'until [ -e ", path("done.0"), " -a -e ", path("done.1"),
                                    " ]; do :; done; wc -l > ", path("lines"), "'");
  EXPECT_EQ(run_into_reader(*this, reader), "done\ndone\n");
  EXPECT_EQ(std::stoi(read_text(path("lines"))), 18'000);
}

TEST_F(LaunchTest, ABackgroundProcessDoesNotHoldUpTheEnd) {
  LockstepProcess process(run_script({"--tee=3", "--log-dir=" + path("logs")},
                                     "sleep 1000 & echo $! > " + path("pid") + "; echo out"));
  const auto result = process.wait();
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "[default0]:out\n");
  const pid_t left = std::stoi(read_text(path("pid")));
  EXPECT_TRUE(process_exists(left)) << "a job that ends well leaves it alone";
  ::kill(left, SIGKILL);
}

TEST_F(LaunchTest, TwoMachinesShareOneJob) {
  const int port = bound_port(bind_tcp("127.0.0.1", 0).get());
  const auto arguments = [&](int node_rank) {
    return run_script({"--nnodes=2", concat("--node-rank=", node_rank), "--nproc-per-node=2",
                       "--master-addr=127.0.0.1", concat("--master-port=", port)},
                      "echo $RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT");
  };
  LockstepProcess second(arguments(1));
  const auto first = lines_of(run_lockstep(arguments(0)).out);
  ASSERT_EQ(first.size(), 2U);
  // Of the store; the launchers have the port that was given.
  const std::string store = first.begin()->substr(first.begin()->find("127.0.0.1 "));
  EXPECT_THAT(first, UnorderedElementsAre("0 4 0 " + store, "1 4 0 " + store));
  EXPECT_THAT(lines_of(second.wait().out),
              UnorderedElementsAre("2 4 1 " + store, "3 4 1 " + store));
}

TEST_F(LaunchTest, ProgramsOfTorchDistributedRun) {
  struct stat status {};
  if (::stat(LOCKSTEP_TEST_PYTHON, &status) != 0) {
    GTEST_SKIP() << "no Python with torch at " LOCKSTEP_TEST_PYTHON;
  }
  const std::vector<std::string> arguments = {"run", "--standalone", "--nproc-per-node=2",
                                              LOCKSTEP_TESTS_DIRECTORY "/workers/all_reduce.py"};
  const std::vector<std::string> variables = {"PYTHON_EXEC=" LOCKSTEP_TEST_PYTHON};
  LockstepProcess other_job(arguments, variables);
  const auto result = run_lockstep(arguments, variables);
  const auto other_result = other_job.wait();
  for (const auto& job : {result, other_result}) {
    EXPECT_EQ(job.status, 0) << job.err;
    EXPECT_THAT(job.out, HasSubstr("rank 0 of 2: sum 1"));
    EXPECT_THAT(job.out, HasSubstr("rank 1 of 2: sum 1"));
  }
}

TEST(Binary, DoesNotLoadLibTorch) {
  EXPECT_NE(std::system("ldd " LOCKSTEP_BINARY " | grep -q -E 'libtorch|libc10'"), 0);
}

TEST(Binary, TeachesItsUse) {
  EXPECT_THAT(run_lockstep({"--help"}).out, HasSubstr("lockstep run --standalone"));
  EXPECT_THAT(run_lockstep({"run", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(run_lockstep({"--version"}).out, testing::StartsWith("lockstep "));
  const auto variables = run_lockstep({"env"}, {"MASTER_PORT=1234", "PET_ROLE=a"});
  EXPECT_THAT(variables.out, HasSubstr("MASTER_PORT (port) = 1234\n"));
  EXPECT_THAT(variables.out, HasSubstr("PET_ROLE=a\n"));
  EXPECT_EQ(variables.status, 0);
}

}  // namespace
}  // namespace lockstep
