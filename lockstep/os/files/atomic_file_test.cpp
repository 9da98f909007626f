#include "lockstep/os/files/atomic_file.h"

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class AtomicFileTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "file"; }

  void put(const std::string& content) {
    AtomicFile file(path());
    file.write(content.data(), content.size());
    file.commit();
  }

  std::string content() const {
    std::ifstream stream(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  }

 private:
  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "atomic-file-"};
};

TEST_F(AtomicFileTest, ReplacesTheContentWhenCommitted) {
  put("old");
  put("new and longer");
  EXPECT_EQ(content(), "new and longer");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFileTest, LeavesTheContentAloneUntilCommitted) {
  put("old");
  {
    AtomicFile file(path());
    file.write("new", 3);
    EXPECT_EQ(content(), "old");
    EXPECT_EQ(entries(), 2);
  }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFileTest, WritersOfOneDirectoryLeaveEachOtherAlone) {
  AtomicFile first(path());
  first.write("first", 5);
  put("second");
  first.commit();
  EXPECT_EQ(content(), "first");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFileTest, RemovesWhatAKilledWriterLeft) {
  put("old");
  const pid_t writer = ::fork();
  if (writer == 0) {
    AtomicFile file(path());
    file.write("half", 4);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(content(), "old");
  ASSERT_EQ(entries(), 2);
  put("new");
  EXPECT_EQ(entries(), 1);
}

/// The limit on file sizes stands in for a full disk: it needs no privileges and is as sudden.
TEST_F(AtomicFileTest, AFullDiskIsAnErrorThatNamesThePathAndLeavesNothingBehind) {
  put("old");
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      put(std::string(10000, 'x'));
    } catch (const SystemError& error) {
      const std::string message = error.what();
      const bool clear = message.find(path().string()) != std::string::npos &&
                         message.find("offset 4096") != std::string::npos &&
                         message.find("free some space") != std::string::npos &&
                         error.errno_value() == EFBIG;
      ::_exit(clear ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFileTest, ADirectoryThatIsNotThereIsAnError) {
  EXPECT_THROW(AtomicFile(path() / "missing" / "file"), SystemError);
}

TEST_F(AtomicFileTest, ReadableFileReadsAtAnyOffsetAndNoticesTheEnd) {
  put("0123456789");
  const ReadableFile file(path());
  put("replaced");
  EXPECT_EQ(file.size_bytes(), 10u);
  char bytes[4] = {};
  file.read(6, bytes, 4);
  EXPECT_EQ(std::string(bytes, 4), "6789");
  EXPECT_THROW(file.read(7, bytes, 4), CorruptFile);
  EXPECT_THROW(ReadableFile(path() / "missing"), SystemError);
  EXPECT_THROW(ReadableFile(path().parent_path()), UsageError);
}

}  // namespace
}  // namespace lockstep
