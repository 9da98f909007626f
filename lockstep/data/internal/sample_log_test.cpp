#include "lockstep/data/internal/sample_log.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class SampleLogTest : public ::testing::Test {
 protected:
  void write(int rank, const std::string& text) const {
    std::ofstream(folder_.path() / ("samples.rank" + std::to_string(rank) + ".jsonl")) << text;
  }
  std::int64_t last_run() const { return SampleLog::last_run(folder_.path()); }

  const TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "sample-log-"};
};

TEST_F(SampleLogTest, TheLastRunIsThatOfAnyRank) {
  EXPECT_EQ(SampleLog::last_run(folder_.path() / "none"), 0);
  EXPECT_EQ(last_run(), 0);
  write(0, "{\"run\":3,\"event\":\"begin\"}\n");
  EXPECT_EQ(last_run(), 3);
  write(1, "{\"run\":3,\"event\":\"begin\"}\n{\"run\":4,\"event\":\"begin\"}\n");
  EXPECT_EQ(last_run(), 4);  // Rank 0 ended before it wrote so.
}

TEST_F(SampleLogTest, ALineThatWasCutOrIsLongHidesNoRun) {
  const std::string line = "{\"run\":12,\"event\":\"batch\",\"samples\":[";
  write(0, line + "1]}\n{\"run\":1");
  EXPECT_EQ(last_run(), 12);
  write(0, line + std::string(100'000, '7') + "]}\n{\"ru");
  EXPECT_EQ(last_run(), 12);
  write(0, line);
  EXPECT_EQ(last_run(), 0);
}

}  // namespace
}  // namespace lockstep
