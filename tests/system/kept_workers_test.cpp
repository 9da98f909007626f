// What `lockstep run` says of workers that keep their state when a generation ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct KeptWorkersTest : testing::Test {
  TemporaryDirectory directory{fs::temp_directory_path(), "lockstep_test_"};
  const std::string folder = directory.path().string();

  std::vector<std::string> run_kept_workers(std::vector<std::string> actions) const {
    std::vector<std::string> arguments = {"run", "--nproc-per-node=2", "--max-restarts=5",
                                          LOCKSTEP_KEPT_WORKER, folder};
    arguments.insert(arguments.end(), actions.begin(), actions.end());
    return arguments;
  }
};

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST_F(KeptWorkersTest, AHintIsForTheFailureThatIsReported) {
  // The first generation ends when the launcher knows that both workers keep their state.
  const auto result = run_lockstep(run_kept_workers({"leave:0", "kill:1", "leave:0", "end"}));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(occurrences(result.err, "left its group"), 2U) << result.err;
  EXPECT_EQ(occurrences(result.err, "killed by SIGKILL"), 1U) << result.err;
  EXPECT_EQ(occurrences(result.err, "hint:"), 1U) << result.err;
}

TEST_F(KeptWorkersTest, RanksThatAScaleDownDismissesAreNotKept) {
  const std::vector<std::string> variables = {"TMPDIR=" + folder};
  LockstepProcess process(run_kept_workers({"wait", "wait", "end"}), variables);
  ASSERT_TRUE(eventually([&] {
    return fs::exists(directory.path() / "announced.0") &&
           fs::exists(directory.path() / "announced.1");
  }));
  // The launcher may take requests a moment after its workers have begun.
  ASSERT_TRUE(eventually([&] { return run_lockstep({"scale", "1"}, variables).status == 0; }));
  // The job may end before this has seen its new workers run.
  run_lockstep({"scale", "2"}, variables);
  const auto result = process.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("to 1 worker; rank 0 kept\n"));
}

}  // namespace
}  // namespace lockstep
