#include "launcher/logs/log_tail.h"

#include <csignal>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep {
namespace {

// The tail keeps only the standard streams, so the console of a test is put in stdout's place.
class ConsoleInstead {
 public:
  explicit ConsoleInstead(int fd) : saved_(::dup(STDOUT_FILENO)) { ::dup2(fd, STDOUT_FILENO); }
  ~ConsoleInstead() { ::dup2(saved_.get(), STDOUT_FILENO); }

 private:
  UniqueFd saved_;
};

struct LogTailTest : testing::Test {
  TemporaryDirectory directory{std::filesystem::temp_directory_path(), "lockstep_test_"};
  std::filesystem::path file = directory.path() / "stdout.log";
  SignalFd signals{{SIGCHLD, SIGUSR1}};
  Pipe console = make_pipe();

  void append(const std::string& text) { std::ofstream(file, std::ios::app) << text; }

  LogTail::Result finish(LogTail& tail, Deadline deadline);

  LogTail make_tail() {
    append("");
    const ConsoleInstead instead(console.write_end.get());
    LogTail tail({{file, "[0]:", STDOUT_FILENO}});
    console.write_end.reset();
    return tail;
  }

  std::string shown(std::size_t bytes) {
    std::string text(bytes, '\0');
    text.resize(static_cast<std::size_t>(
        std::max<ssize_t>(0, ::read(console.read_end.get(), text.data(), bytes))));
    return text;
  }
};

LogTail::Result LogTailTest::finish(LogTail& tail, Deadline deadline) {
  return tail.finish(deadline, signals, [&] {
    pollfd ready{signals.fd(), POLLIN, 0};
    ::poll(&ready, 1, poll_timeout(deadline));
  });
}

TEST_F(LogTailTest, ShowsLinesAsTheyAreWritten) {
  LogTail tail = make_tail();
  append("one\n");
  EXPECT_EQ(shown(100), "[0]:one\n");
  append("two\nlast");
  EXPECT_EQ(shown(100), "[0]:two\n");
  EXPECT_TRUE(finish(tail, Deadline::after(std::chrono::seconds(30))).complete);
  EXPECT_EQ(shown(100), "[0]:last\n");
}

std::string flood(std::uint64_t bytes) {
  const std::string line = std::string(99, 'x') + "\n";
  std::string text;
  while (text.size() < bytes) text += line;
  return text;
}

TEST_F(LogTailTest, AFloodedStreamHoldsUpNoOther) {
  append(flood(16 << 20));
  const auto other = directory.path() / "other.log";
  std::ofstream(other) << "the error\n";
  std::optional<LogTail> tail;
  {
    const ConsoleInstead instead(console.write_end.get());
    tail.emplace(
        std::vector<TailedLog>{{.file = file, .prefix = "[0]:", .console_fd = STDOUT_FILENO},
                               {.file = other, .prefix = "[1]:", .console_fd = STDOUT_FILENO}});
  }
  std::string text;
  while (text.find("[1]:the error\n") == std::string::npos) {
    text += shown(100'000);
    ASSERT_LT(text.size(), 200'000);
  }
}

TEST_F(LogTailTest, AtTheEndTheLastOfAFloodIsShown) {
  append(flood(16 << 20) + "the error\n");
  console.write_end.reset(::dup(console.write_end.get()));
  std::optional<LogTail> tail;
  {
    const ConsoleInstead instead(console.write_end.get());
    const UniqueFd errors(::dup(STDERR_FILENO));
    ::dup2(console.write_end.get(), STDERR_FILENO);
    tail.emplace(
        std::vector<TailedLog>{{.file = file, .prefix = "[0]:", .console_fd = STDOUT_FILENO}});
    ::dup2(errors.get(), STDERR_FILENO);
  }
  console.write_end.reset();
  tail->request_end();
  std::string text;
  for (std::string more = shown(100'000); !more.empty(); more = shown(100'000)) text += more;
  EXPECT_TRUE(text.ends_with("[0]:the error\n"));
  // What was on its way to the console, and the last of it, with prefixes.
  EXPECT_LT(text.size(), 2 * LogTail::kMostBytesLeft);
  EXPECT_NE(text.find(" bytes of " + file.string() + " are not shown here; the file has all\n"),
            std::string::npos);
  EXPECT_TRUE(finish(*tail, Deadline::after(std::chrono::seconds(30))).complete);
}

TEST_F(LogTailTest, CopiesWhatAFilterSelectsThoughTheConsoleTakesNothing) {
  append("");
  const auto copy = directory.path() / "filtered_stdout.log";
  std::ofstream(copy) << "";
  std::optional<LogTail> tail;
  {
    const ConsoleInstead instead(console.write_end.get());
    tail.emplace(std::vector<TailedLog>{
        {.file = file, .prefix = "[0]:", .console_fd = STDOUT_FILENO},
        {.file = file, .prefix = "[0]:", .copy = copy, .filter = parse_line_filter("loss,error")}});
  }
  append(std::string(1 << 20, 'x') + "\nstep 1 loss 0.5\nstep 2\nan error\n");
  const std::string expected = "[0]:step 1 loss 0.5\n[0]:an error\n";
  std::string copied;
  const auto deadline = Deadline::after(std::chrono::seconds(30));
  while (copied != expected && !deadline.passed()) {
    std::ifstream stream(copy);
    copied.assign(std::istreambuf_iterator<char>(stream), {});
  }
  EXPECT_EQ(copied, expected);
}

TEST_F(LogTailTest, GivesUpOnAConsoleThatTakesNothing) {
  LogTail tail = make_tail();
  append(std::string(1 << 20, 'x') + "\n");
  EXPECT_FALSE(finish(tail, Deadline::after(std::chrono::milliseconds(50))).complete);
}

TEST_F(LogTailTest, GivesUpWhenTheLauncherIsToldToStop) {
  LogTail tail = make_tail();
  append(std::string(1 << 20, 'x') + "\n");
  ::raise(SIGUSR1);
  const auto result = finish(tail, Deadline::after(std::chrono::hours(1)));
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.stop_signal, SIGUSR1);
}

TEST_F(LogTailTest, EndsWhenNobodyReads) {
  LogTail tail = make_tail();
  console.read_end.reset();
  append("line\n");
  EXPECT_TRUE(finish(tail, Deadline::after(std::chrono::seconds(30))).complete);
}

}  // namespace
}  // namespace lockstep
