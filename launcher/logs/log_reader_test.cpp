#include "launcher/logs/log_reader.h"

#include <fstream>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct LogReaderTest : testing::Test {
  TemporaryDirectory directory{fs::temp_directory_path(), "lockstep_test_"};
  std::string out;
  std::string err;
  std::vector<int> attempts;

  void write(int attempt, int local_rank, const std::string& text,
             const std::string& name = "stdout.log") {
    const fs::path parent = directory.path() / concat("attempt_", attempt) / concat(local_rank);
    fs::create_directories(parent);
    std::ofstream(parent / name, std::ios::app) << text;
  }
  LogReader reader(const LogChoice& choice = {}) {
    return {directory.path(),
            choice,
            {.prefix = [](int local_rank) { return concat(local_rank, ":"); },
             .lines = [this](bool is_stderr,
                             std::string_view lines) { (is_stderr ? err : out) += lines; },
             .attempt = [this](int attempt) { attempts.push_back(attempt); }}};
  }
  std::string taken() { return std::exchange(out, ""); }
};

TEST_F(LogReaderTest, ReadsTheLastAttemptInOrderOfRanks) {
  write(2, 0, "old\n");
  write(10, 10, "last\n");
  write(10, 9, "a\nb");
  write(10, 9, "error\n", "stderr.log");
  LogReader logs = reader();
  logs.finish();
  EXPECT_EQ(out, "9:a\n9:b\n10:last\n");
  EXPECT_EQ(err, "9:error\n");
  EXPECT_EQ(attempts, std::vector<int>{10});
  EXPECT_TRUE(logs.found_any());
}

TEST_F(LogReaderTest, FollowsFilesRanksAndAttempts) {
  LogReader logs = reader();
  logs.look();
  EXPECT_FALSE(logs.found_any());
  write(0, 0, "a\nb");
  logs.look();
  EXPECT_EQ(taken(), "0:a\n");
  write(0, 0, "c\nd");
  write(0, 1, "e\n");
  logs.look();
  EXPECT_EQ(taken(), "0:bc\n1:e\n");
  write(0, 1, "f\n");
  write(1, 0, "g\n");
  write(2, 0, "h\n");
  logs.look();
  EXPECT_EQ(taken(), "1:f\n0:d\n0:g\n0:h\n");
  EXPECT_EQ(attempts, (std::vector<int>{0, 1, 2}));
}

TEST_F(LogReaderTest, AFloodedFileHoldsUpNoOther) {
  std::string flood;
  while (flood.size() < 1'000'000) flood += std::string(99, 'x') + "\n";
  write(0, 0, flood);
  write(0, 1, "error\n");
  LogReader logs = reader();
  logs.look();
  EXPECT_LT(out.find("1:error\n"), 70'000U);
  EXPECT_GT(out.size(), flood.size());
}

TEST_F(LogReaderTest, LeavesOutWhatIsNotChosen) {
  write(0, 0, "a\n");
  write(0, 1, "b\nc\nd\n");
  write(1, 1, "e\n");
  LogReader logs = reader({.attempt = 0, .local_ranks = {1}, .last_lines = 2});
  logs.look();
  write(0, 1, "f\ng\nh\n");
  logs.finish();
  EXPECT_EQ(out, "1:c\n1:d\n1:f\n1:g\n1:h\n");
}

TEST_F(LogReaderTest, FindsWhereTheLastLinesBegin) {
  const std::string many(200'000, 'x');
  write(0, 0, many + "\nb\nc\nd");
  const UniqueFd fd(::open((directory.path() / "attempt_0/0/stdout.log").c_str(), O_RDONLY));
  EXPECT_EQ(start_of_last_lines(fd.get(), 0), many.size() + 6);
  EXPECT_EQ(start_of_last_lines(fd.get(), 1), many.size() + 5);
  EXPECT_EQ(start_of_last_lines(fd.get(), 2), many.size() + 3);
  EXPECT_EQ(start_of_last_lines(fd.get(), 3), many.size() + 1);
  EXPECT_EQ(start_of_last_lines(fd.get(), 4), 0U);
  EXPECT_EQ(start_of_last_lines(fd.get(), 40), 0U);
}

}  // namespace
}  // namespace lockstep
