#include "lockstep/fetch/archive_members.h"

#include <memory>
#include <string>
#include <utility>

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct TestMember {
  std::string path;
  std::string content;
  unsigned int type = AE_IFREG;
};

void write_archive(const fs::path& path, bool zip, const std::vector<TestMember>& members) {
  const std::unique_ptr<archive, decltype(&archive_write_free)> writer(archive_write_new(),
                                                                       archive_write_free);
  if (zip) {
    archive_write_set_format_zip(writer.get());
  } else {
    archive_write_set_format_ustar(writer.get());
    archive_write_add_filter_gzip(writer.get());
  }
  ASSERT_EQ(archive_write_open_filename(writer.get(), path.c_str()), ARCHIVE_OK);
  for (const TestMember& member : members) {
    const std::unique_ptr<archive_entry, decltype(&archive_entry_free)> entry(archive_entry_new(),
                                                                              archive_entry_free);
    archive_entry_set_pathname(entry.get(), member.path.c_str());
    archive_entry_set_filetype(entry.get(), member.type);
    archive_entry_set_perm(entry.get(), 0644);
    if (member.type == AE_IFLNK) {
      archive_entry_set_symlink(entry.get(), member.content.c_str());
      archive_entry_set_size(entry.get(), 0);
    } else {
      archive_entry_set_size(entry.get(), static_cast<la_int64_t>(member.content.size()));
    }
    ASSERT_EQ(archive_write_header(writer.get(), entry.get()), ARCHIVE_OK);
    if (member.type == AE_IFREG) {
      archive_write_data(writer.get(), member.content.data(), member.content.size());
    }
  }
  ASSERT_EQ(archive_write_close(writer.get()), ARCHIVE_OK);
}

class ArchiveMembersTest : public testing::TestWithParam<bool> {
 protected:
  void write(const std::vector<TestMember>& members) const {
    write_archive(archive_, GetParam(), members);
  }
  void extract(const std::vector<ArchiveMember>& members) const {
    extract_members(archive_, members, folder_);
  }
  std::string error_of(const std::vector<ArchiveMember>& members) const {
    try {
      extract(members);
    } catch (const CorruptFile& error) {
      return error.what();
    }
    return "accepted";
  }

  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-archive-"};
  const fs::path archive_ = directory_.path() / "archive";
  const fs::path folder_ = directory_.path() / "folder";
  const bool made_ = fs::create_directory(folder_);
};

TEST_P(ArchiveMembersTest, UnpacksWhatIsAskedForAndNothingElse) {
  const std::string large(1'000'003, 'x');
  write({{"a/one.txt", "1"}, {"a/two.txt", large}, {"a/three.txt", "3"}, {"a/empty", ""}});
  extract({{"a/two.txt", "2"}, {"a/one.txt", "one.txt"}, {"a/empty", "empty"}});
  EXPECT_EQ(read_text_file(folder_ / "2"), large);
  EXPECT_EQ(read_text_file(folder_ / "one.txt"), "1");
  EXPECT_EQ(read_text_file(folder_ / "empty"), "");
  EXPECT_FALSE(fs::exists(folder_ / "three.txt"));
}

TEST_P(ArchiveMembersTest, RefusesPathsThatLeaveTheFolderEvenUnwanted) {
  for (const char* path : {"/etc/passwd", "../up", "a/../../up", "a/.."}) {
    write({{"one", "1"}, {path, "evil"}});
    EXPECT_NE(error_of({{"one", "first"}}).find("outside of the folder"), std::string::npos)
        << path;
    fs::remove(folder_ / "first");
  }
}

TEST_P(ArchiveMembersTest, SaysWhatIsMissingTwiceOrNoFile) {
  write({{"one", "1"}, {"one", "2"}, {"link", "/etc/passwd", AE_IFLNK}});
  EXPECT_NE(error_of({{"one", "x"}}).find("one is there twice"), std::string::npos);
  EXPECT_NE(error_of({{"link", "y"}}).find("link is no regular file"), std::string::npos);
  EXPECT_NE(error_of({{"none", "z"}}).find("there is no none in it"), std::string::npos);
}

TEST_P(ArchiveMembersTest, NeverWritesOverAFile) {
  write({{"one", "1"}});
  write_text_file(folder_ / "one", "there before");
  EXPECT_THROW(extract({{"one", "one"}}), SystemError);
  EXPECT_EQ(read_text_file(folder_ / "one"), "there before");
}

TEST_P(ArchiveMembersTest, RefusesWhatIsCutOffOrNoArchive) {
  std::string noise;
  for (std::size_t i = 0; i < 100'000; ++i) noise += static_cast<char>(i * i * 31 >> 7);
  write({{"one", noise}});
  const std::string whole = read_text_file(archive_);
  for (const std::size_t length : {whole.size() / 2, std::size_t{100}, std::size_t{0}}) {
    fs::remove(archive_);
    write_text_file(archive_, whole.substr(0, length));
    EXPECT_NE(error_of({{"one", "x" + std::to_string(length)}}).find("archive"), std::string::npos)
        << length;
  }
  fs::remove(archive_);
  write_text_file(archive_, "no archive at all, only text");
  EXPECT_NE(error_of({{"one", "x"}}).find("archive archive:"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Formats, ArchiveMembersTest, testing::Bool(),
                         [](const auto& format) { return format.param ? "Zip" : "TarGz"; });

}  // namespace
}  // namespace lockstep
