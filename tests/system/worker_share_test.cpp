// `lockstep run`: what part of the machine each worker gets.
#include <algorithm>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/cpu_topology.h"
#include "lockstep/os/machine/machine.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// "<rank> <processors> <OMP_NUM_THREADS>" of each worker.
constexpr const char* kTellShare =
    "echo $RANK $(sed -n 's/Cpus_allowed_list:.//p' /proc/self/status) $OMP_NUM_THREADS";

// A control group of version 1 with a quota of processors' time, where this system has them and
// lets us.
class QuotaGroup {
 public:
  explicit QuotaGroup(int processors) {
    std::error_code error;
    fs::create_directory(path_, error);
    std::ofstream(path_ / "cpu.cfs_period_us") << 100'000;
    std::ofstream(path_ / "cpu.cfs_quota_us") << 100'000 * processors;
    works_ = !error && read_text(path_ / "cpu.cfs_quota_us") == concat(100'000 * processors, "\n");
  }
  ~QuotaGroup() { ::rmdir(path_.c_str()); }
  bool works() const { return works_; }
  std::string processes() const { return (path_ / "cgroup.procs").string(); }

 private:
  fs::path path_ = fs::path("/sys/fs/cgroup/cpu") / concat("lockstep_test_", ::getpid());
  bool works_ = false;
};

// As the kernel writes it: "0-2,4".
std::string own_cpu_list() {
  constexpr const char* kField = "Cpus_allowed_list:\t";
  const std::string status = read_text("/proc/self/status");
  const auto begin = status.find(kField) + std::string(kField).size();
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(WorkerShare, UnboundWorkersMayUseAllProcessorsAndDivideTheThreads) {
  const std::string all = own_cpu_list();
  const int share = std::max(1, usable_cpu_count() / 2);
  const auto result = run_lockstep(run_script({"--nproc-per-node=2"}, kTellShare));
  EXPECT_EQ(sorted_lines(result.out), (std::vector<std::string>{concat("0 ", all, " ", share),
                                                                concat("1 ", all, " ", share)}));
}

TEST(WorkerShare, BoundWorkersStayWithinWhatTheLauncherMayUse) {
  const int cpu = allowed_cpus().back();
  for (const char* mode : {"node", "socket", "exclusive", "core-complex"}) {
    const auto result = run_lockstep({"run", "sh", "-c",
                                      concat("exec taskset -c ", cpu, " ", LOCKSTEP_BINARY,
                                             " run --numa-binding=", mode, " sh -c \"$1\""),
                                      "sh", kTellShare});
    EXPECT_EQ(result.out, concat("0 ", cpu, "\n")) << mode << result.err;
  }
}

TEST(WorkerShare, ExclusiveWorkersHaveCoresOfTheirOwn) {
  if (allowed_cpus().size() < 2) GTEST_SKIP() << "needs two processors";
  const auto result =
      run_lockstep(run_script({"--nproc-per-node=2", "--numa-binding=exclusive"}, kTellShare));
  if (result.status != 0) GTEST_SKIP() << "needs two cores on a node: " << result.err;
  std::vector<int> first;
  std::vector<int> second;
  for (const std::string& line : sorted_lines(result.out)) {
    const auto end = line.find(' ', 2);
    (line[0] == '0' ? first : second) = parse_cpu_list(line.substr(2, end - 2));
  }
  ASSERT_FALSE(first.empty() || second.empty()) << result.out;
  for (const int cpu : first) EXPECT_EQ(std::count(second.begin(), second.end(), cpu), 0);
}

TEST(WorkerShare, MoreWorkersThanCoresAreRefusedBeforeAnyStarts) {
  const int cpu = allowed_cpus().front();
  const auto result =
      run_lockstep({"run", "sh", "-c",
                    concat("exec taskset -c ", cpu, " ", LOCKSTEP_BINARY,
                           " run --nproc-per-node=2 --numa-binding=exclusive echo started")});
  EXPECT_THAT(result.err, HasSubstr("has 1 core for 2 workers or GPUs"));
  EXPECT_EQ(result.out, "");
}

TEST(WorkerShare, ThreadsFollowTheQuotaOfTheControlGroup) {
  const QuotaGroup group(1);
  if (!group.works()) GTEST_SKIP() << "needs root and control groups of version 1";
  if (usable_cpu_count() < 2 || usable_cpu_count() < allowed_cpu_count()) {
    GTEST_SKIP() << "needs two processors and no quota";
  }
  const auto threads = [&](const std::string& join) {
    return run_lockstep({"run", "sh", "-c",
                         concat(join, "exec env -u OMP_NUM_THREADS ", LOCKSTEP_BINARY,
                                " run sh -c 'echo ${OMP_NUM_THREADS:-all}'")})
        .out;
  };
  EXPECT_EQ(threads(""), "all\n");
  EXPECT_EQ(threads(concat("echo $$ > ", group.processes(), "; ")), "1\n");
}

}  // namespace
}  // namespace lockstep
