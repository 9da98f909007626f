// Over file://; tests/python/data_get.py has a server.
#include "lockstep/fetch/download.h"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/fetch/download_error.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class DownloadTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-download-"};
  const fs::path source_ = directory_.path() / "source";
  const fs::path target_ = directory_.path() / "target";
  const std::string url_ = "file://" + source_.string();
};

TEST_F(DownloadTest, BringsTheWholeFile) {
  const std::string content(1'000'003, 'x');
  write_text_file(source_, content);
  std::uint64_t seen = 0;
  download(url_, target_, {.on_progress = [&](std::uint64_t done, std::uint64_t) { seen = done; }});
  EXPECT_EQ(read_text_file(target_), content);
  EXPECT_EQ(seen, content.size());
  EXPECT_FALSE(fs::exists(target_.string() + ".part"));
}

TEST_F(DownloadTest, EndsWhenItIsTold) {
  write_text_file(source_, std::string(1'000'003, 'x'));
  const auto stop = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("stop"); };
  EXPECT_THROW(download(url_, target_, {.on_progress = stop}), std::runtime_error);
  EXPECT_FALSE(fs::exists(target_));
}

TEST_F(DownloadTest, RefusesMoreThanThereShouldBe) {
  // In many pieces, each of them small enough.
  write_text_file(source_, std::string(1'000'003, 'x'));
  EXPECT_THROW(download(url_, target_, {.most_bytes = 1'000'002}), DownloadError);
  EXPECT_FALSE(fs::exists(target_));
  download(url_, target_, {.most_bytes = 1'000'003});
}

TEST_F(DownloadTest, SaysWhatCannotBeFetchedOrWritten) {
  EXPECT_THROW(download(url_, target_, {}), DownloadError) << "no such file";
  EXPECT_THROW(download("ftp://host/x", target_, {}), UsageError);
  EXPECT_THROW(download(url_, directory_.path() / "none" / "x", {}), SystemError);
}

TEST_F(DownloadTest, SaysWhenTheDiskIsFull) {
  write_text_file(source_, std::string(100'000, 'x'));
  fs::create_symlink("/dev/full", target_.string() + ".part");
  try {
    download(url_, target_, {});
    ADD_FAILURE();
  } catch (const SystemError& error) {
    EXPECT_EQ(error.errno_value(), ENOSPC) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
