#include "lockstep/fetch/data_folder.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/base/concat.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Kind = DataFolderState::Kind;

class DataFolderTest : public testing::Test {
 protected:
  // Of a file of `size_bytes`.
  static Recipe recipe_of(int size_bytes, const std::string& summary) {
    return parse_recipes(concat(R"({"name": "mine", "summary": ")", summary,
                                R"(", "licences": ["mine", "all of it"], "make": "files",
                                "sources": [{"url": "https://host/a.bin", "md5": ")",
                                std::string(32, '0'), R"(", "bytes": )", size_bytes, "}]}"),
                         "test")
        .front();
  }
  void make() const {
    fs::create_directory(folder_);
    write_text_file(folder_ / "a.bin", "aaa");
    write_text_file(folder_ / "b.bin", "");
    seal_data_folder(folder_, recipe_);
  }
  void expect(Kind kind, const std::string& reason = "") const {
    const DataFolderState state = inspect_data_folder(folder_, recipe_);
    EXPECT_EQ(state.kind, kind) << state.reason;
    EXPECT_NE(state.reason.find(reason), std::string::npos) << state.reason;
  }

  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-folder-"};
  const fs::path folder_ = directory_.path() / "mine";
  Recipe recipe_ = recipe_of(3, "my data");
};

TEST_F(DataFolderTest, IsFreeThenWhole) {
  expect(Kind::kFree);
  fs::create_directory(folder_);
  expect(Kind::kFree);
  make();
  expect(Kind::kWhole);
  EXPECT_EQ(read_text_file(folder_ / "LICENSES.txt"), "mine: my data\n\nmine\nall of it\n");
  EXPECT_NE(read_text_file(folder_ / "SHA256SUMS")
                .find("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b.bin\n"),
            std::string::npos);
}

TEST_F(DataFolderTest, NoticesEveryChange) {
  make();
  std::ofstream(folder_ / "a.bin") << "aab";
  expect(Kind::kOutdated, "a.bin was changed or damaged");
  fs::remove(folder_ / "a.bin");
  expect(Kind::kOutdated, "a.bin is missing");
  fs::remove_all(folder_);
  make();
  recipe_ = recipe_of(3, "said in other words");
  expect(Kind::kWhole);
  recipe_ = recipe_of(4, "my data");
  expect(Kind::kOutdated, "another recipe");
}

TEST_F(DataFolderTest, KnowsWhatIsNotItsOwn) {
  make();
  std::ofstream(folder_ / "notes.txt") << "mine";
  expect(Kind::kForeign, "notes.txt");
  fs::remove(folder_ / "notes.txt");
  std::ofstream(folder_ / "SHA256SUMS") << "nonsense";
  expect(Kind::kForeign, "SHA256SUMS, line 1");
  fs::remove(folder_ / "SHA256SUMS");
  expect(Kind::kForeign, "no SHA256SUMS");
  fs::remove_all(folder_);
  std::ofstream(folder_.string()) << "a file";
  expect(Kind::kForeign, "no folder");
}

}  // namespace
}  // namespace lockstep
