#include <chrono>
#include <csignal>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep {
namespace {

TEST(TemporaryDirectory, IsPrivateAndRemoved) {
  std::filesystem::path path;
  {
    const TemporaryDirectory directory(std::filesystem::temp_directory_path(), "lockstep_test_");
    path = directory.path();
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U);
    std::ofstream(path / "file") << "text";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryDirectory, NamesTheParentThatRefuses) {
  try {
    const TemporaryDirectory directory("/no/such/parent", "x");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/parent"), std::string::npos);
  }
}

TEST(WriteAll, GivesUpOnAReaderThatDoesNotRead) {
  const Pipe pipe = make_pipe();
  const std::string more_than_a_pipe_holds(1 << 20, 'x');
  EXPECT_FALSE(write_all(pipe.write_end.get(), more_than_a_pipe_holds,
                         Deadline::after(std::chrono::milliseconds(1))));
}

TEST(WriteAll, ReportsAReaderThatIsGone) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  pipe.read_end.reset();
  EXPECT_FALSE(write_all(pipe.write_end.get(), "text", Deadline::after(std::chrono::hours(1))));
  ::signal(SIGPIPE, before);
}

TEST(ReadToEnd, ReadsOnAndKeepsNoMoreThanItMay) {
  Pipe pipe = make_pipe();
  const pid_t writer = ::fork();
  if (writer == 0) {
    pipe.read_end.reset();
    const std::string text(kMostBytesToEnd + 1'000'000, 'x');
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    ::_exit(write_all(pipe.write_end.get(), text, deadline) ? 0 : 1);
  }
  pipe.write_end.reset();
  const std::string text =
      read_to_end(pipe.read_end.get(), Deadline::after(std::chrono::seconds(60)));
  EXPECT_EQ(text.size(), kMostBytesToEnd);
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0) << "the writer had to wait";
}

TEST(Machine, HasACpu) {
  EXPECT_GE(allowed_cpu_count(), 1);
  EXPECT_GE(nvidia_device_count(), 0);
}

}  // namespace
}  // namespace lockstep
