#include "lockstep/record/internal/csv_file.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class CsvFileTest : public ::testing::Test {
 protected:
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_text(const std::string& text) const { std::ofstream(path_) << text; }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "csv-"};
  std::filesystem::path path_ = folder_.path() / "metrics.csv";
};

TEST_F(CsvFileTest, ANewNameBecomesAColumn) {
  CsvFile file(path_);
  file.write({{"step", 50}, {"loss", 0.3125}});
  file.write({{"step", 100}, {"loss", 1.0 / 3}});
  EXPECT_EQ(text(), "step,loss\n50,0.3125\n100,0.333333333\n");
  file.write({{"step", 100}, {"val_loss", 0.5}});
  EXPECT_EQ(text(), "step,loss,val_loss\n50,0.3125,\n100,0.333333333,\n100,,0.5\n");
  file.write({{"loss", 2e9}, {"step", 150}});
  EXPECT_TRUE(text().ends_with("\n150,2000000000,\n"));
}

TEST_F(CsvFileTest, AnotherRunGoesOn) {
  { CsvFile(path_).write({{"step", 1}, {"loss", 2}}); }
  { CsvFile(path_).write({{"step", 2}, {"loss", 3}}); }
  EXPECT_EQ(text(), "step,loss\n1,2\n2,3\n");
  { CsvFile(path_).write({{"step", 3}, {"lr", 0.1}}); }
  EXPECT_EQ(text(), "step,loss,lr\n1,2,\n2,3,\n3,,0.1\n");
}

TEST_F(CsvFileTest, RowsOfStepsThatWereGivenUpAreLeftOut) {
  set_text("step,loss,lr\n9,1,\n10,2,0.1\n11,3,\n12,4,0.2\n");
  CsvFile file(path_);
  file.drop_rows_after("none", 0);
  file.drop_rows_after("step", 10);
  EXPECT_EQ(text(), "step,loss,lr\n9,1,\n10,2,0.1\n");
  file.write({{"step", 11}, {"loss", 5}});
  EXPECT_EQ(text(), "step,loss,lr\n9,1,\n10,2,0.1\n11,5,\n");
  CsvFile(path_).drop_rows_after("step", 0);
  EXPECT_EQ(text(), "step,loss,lr\n");
}

TEST_F(CsvFileTest, KnowsWhetherItsLastRowsHaveTheSameColumns) {
  CsvFile file(path_);
  EXPECT_FALSE(file.ends_with({{"step", 9}}, "step"));
  set_text("step,loss,val_loss\n9,1,\n10,2,\n10,,0.5\n");
  const CsvFile there(path_);
  EXPECT_TRUE(there.ends_with({{"step", 10}, {"loss", 7}}, "step"));
  EXPECT_TRUE(there.ends_with({{"val_loss", 7}, {"step", 10}}, "step"));
  EXPECT_FALSE(there.ends_with({{"step", 9}, {"loss", 1}}, "step")) << "not among the last";
  EXPECT_FALSE(there.ends_with({{"step", 11}, {"loss", 2}}, "step"));
  EXPECT_FALSE(there.ends_with({{"step", 10}, {"loss", 2}, {"val_loss", 1}}, "step"));
  EXPECT_FALSE(there.ends_with({{"loss", 2}}, "step"));
}

TEST_F(CsvFileTest, ARowThatIsCutOffIsLeftOut) {
  set_text("step,loss\n1,2\n2,");
  CsvFile(path_).write({{"step", 2}, {"loss", 4}});
  EXPECT_EQ(text(), "step,loss\n1,2\n2,4\n");
  set_text("");
  CsvFile(path_).write({{"step", 2}});
  EXPECT_EQ(text(), "step\n2\n");
}

TEST_F(CsvFileTest, NamesAndNumbersOfEveryKind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CsvFile file(path_);
  file.write({{"a,b", std::nan("")}, {"say \"x\"", kInfinity}, {"two\nlines", -kInfinity}});
  EXPECT_EQ(text(), "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\"\nnan,inf,-inf\n");
  CsvFile(path_).write({{"two\nlines", -0.5}, {"a,b", 1e-20}});
  EXPECT_TRUE(text().ends_with("\nnan,inf,-inf\n1e-20,,-0.5\n"));
}

TEST_F(CsvFileTest, WhatIsNoTableIsRefused) {
  set_text("a,,b\n");
  EXPECT_THROW(CsvFile{path_}, UsageError);
  EXPECT_THROW(CsvFile("/proc/none/metrics.csv"), SystemError);
}

TEST(CsvText, CellsAreReadAsTheyWereWritten) {
  for (const std::string name : {"", "a", "a,b", "\"", "say \"x\", y", "two\nlines"}) {
    const std::string line = "1," + csv_cell(name) + ",2";
    EXPECT_EQ(csv_cells(line), (std::vector<std::string>{"1", name, "2"})) << line;
    EXPECT_EQ(csv_lines(line + "\r\n" + line + "\nrest").size(), 2U);
  }
  EXPECT_EQ(csv_number(-0.0), "-0");
  EXPECT_EQ(csv_number(1e15), "1000000000000000");
  EXPECT_EQ(csv_number(1e20), "1e+20");
}

}  // namespace
}  // namespace lockstep
