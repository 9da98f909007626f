#include "lockstep/program/progress_bar.h"

#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/machine/terminal.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Everything that can be read without waiting.
std::string read_available(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// A terminal of our own: what is written to `inside` is read from `outside`.
struct PseudoTerminal {
  explicit PseudoTerminal(unsigned short columns) {
    ::grantpt(outside.get());
    ::unlockpt(outside.get());
    inside.reset(::open(::ptsname(outside.get()), O_RDWR | O_NOCTTY));
    winsize size{};
    size.ws_col = columns;
    ::ioctl(inside.get(), TIOCSWINSZ, &size);
  }
  UniqueFd outside{::posix_openpt(O_RDWR | O_NOCTTY)};
  UniqueFd inside;
};

class ProgressBarTest : public ::testing::Test {
 protected:
  ProgressBarTest() {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
  }
  const ProgressBar::Clock::time_point start_{};
};

TEST_F(ProgressBarTest, DrawsOverTheSameLineAtMostTenTimesASecond) {
  PseudoTerminal terminal(100);
  ProgressBar bar({.epochs = 1, .steps_per_epoch = 1000, .fd = terminal.inside.get()}, start_);
  for (int i = 1; i <= 1000; ++i) bar.step_done(0.5, start_ + milliseconds(i));
  const std::string text = read_available(terminal.outside.get());
  EXPECT_EQ(count_of("\r", text), 10U) << text;
  EXPECT_EQ(count_of("\n", text), 0U) << text;
  EXPECT_NE(text.find("\x1b[32m"), std::string::npos) << text;
  EXPECT_NE(text.find("1000 step/s"), std::string::npos) << text;
}

TEST_F(ProgressBarTest, ErasesTheBarBeforeALineThatStaysAndAtTheEnd) {
  PseudoTerminal terminal(100);
  {
    ProgressBar bar({.epochs = 2, .steps_per_epoch = 1, .fd = terminal.inside.get()}, start_);
    bar.step_done(0.5, start_ + seconds(1));
    bar.epoch_done("epoch 1 is done", start_ + seconds(1));
  }
  const std::string text = read_available(terminal.outside.get());
  EXPECT_NE(text.find("\r\x1b[Kepoch 1 is done\r\n\repoch 2/2"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
}

TEST_F(ProgressBarTest, TakesTheBarAwayForAProgramThatPrintsItself) {
  PseudoTerminal terminal(100);
  ProgressBar bar({.epochs = 2, .steps_per_epoch = 1, .fd = terminal.inside.get()}, start_);
  bar.step_done(0.5, start_ + seconds(1));
  bar.epoch_done();
  EXPECT_TRUE(read_available(terminal.outside.get()).ends_with("\r\x1b[K"));
  bar.step_done(0.5, start_ + seconds(2));
  EXPECT_NE(read_available(terminal.outside.get()).find("epoch 2/2"), std::string::npos);
}

TEST_F(ProgressBarTest, HonoursNoColorAndDumbTerminals) {
  ::setenv("NO_COLOR", "1", 1);
  PseudoTerminal terminal(100);
  ProgressBar plain({.fd = terminal.inside.get()}, start_);
  plain.step_done(0.5, start_ + seconds(1));
  EXPECT_EQ(count_of("\x1b[32m", read_available(terminal.outside.get())), 0U);
  ::setenv("TERM", "dumb", 1);
  ProgressBar dumb({.fd = terminal.inside.get()}, start_);
  dumb.step_done(0.5, start_ + seconds(1));
  EXPECT_EQ(read_available(terminal.outside.get()), "");
}

TEST_F(ProgressBarTest, WritesAPlainLineNowAndThenWhereThereIsNoTerminal) {
  const Pipe pipe = make_pipe();
  ProgressBar bar({.epochs = 2, .steps_per_epoch = 100, .fd = pipe.write_end.get()}, start_);
  for (int i = 1; i <= 35; ++i) bar.step_done(0.5, start_ + seconds(i));
  bar.epoch_done("epoch 1 is done", start_ + seconds(35));
  const std::string text = read_available(pipe.read_end.get());
  EXPECT_EQ(count_of("\n", text), 4U) << text;
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "epoch 1/2    5 %  step  10/100  1.0 step/s  eta 3:10  loss 0.5000");
  EXPECT_EQ(count_of("\r", text) + count_of("\x1b", text), 0U) << text;
}

TEST_F(ProgressBarTest, DoesNotWaitForATerminalThatTakesNothing) {
  PseudoTerminal terminal(100);
  ::fcntl(terminal.inside.get(), F_SETFL, O_NONBLOCK);
  while (::write(terminal.inside.get(), "x", 1) == 1) {
  }
  ProgressBar bar({.epochs = 1, .steps_per_epoch = 1000, .fd = terminal.inside.get()}, start_);
  const auto before = ProgressBar::Clock::now();
  for (int i = 1; i <= 100; ++i) bar.step_done(0.5, start_ + seconds(i));
  EXPECT_LT(ProgressBar::Clock::now() - before, seconds(1));
}

TEST_F(ProgressBarTest, CountsTheSpeedOfThisProcessAloneAfterAResume) {
  const Pipe pipe = make_pipe();
  ProgressBar bar(
      {.epochs = 10, .steps_per_epoch = 10, .first_epoch = 9, .fd = pipe.write_end.get()}, start_);
  bar.step_done(0.5, start_ + seconds(10));
  const std::string text = read_available(pipe.read_end.get());
  EXPECT_NE(text.find("epoch 10/10   91 %  step  1/10  0.1 step/s  eta 1:30"), std::string::npos)
      << text;
}

TEST_F(ProgressBarTest, IsSilentOnOtherRanksAndShowsOnlyMessagesWhenDisabled) {
  const Pipe pipe = make_pipe();
  ProgressBar other({.rank = 1, .fd = pipe.write_end.get()}, start_);
  other.step_done(0.5, start_ + seconds(60));
  other.epoch_done("done", start_ + seconds(60));
  EXPECT_EQ(read_available(pipe.read_end.get()), "");
  ProgressBar disabled({.enabled = false, .fd = pipe.write_end.get()}, start_);
  disabled.step_done(0.5, start_ + seconds(60));
  disabled.epoch_done("done", start_ + seconds(60));
  EXPECT_EQ(read_available(pipe.read_end.get()), "done\n");
}

TEST(TerminalColumns, AreKnownForTerminalsOnly) {
  const PseudoTerminal wide(123);
  const PseudoTerminal untold(0);
  EXPECT_EQ(terminal_columns(wide.inside.get()), 123);
  EXPECT_EQ(terminal_columns(untold.inside.get()), 80);
  EXPECT_EQ(terminal_columns(make_pipe().write_end.get()), std::nullopt);
}

}  // namespace
}  // namespace lockstep
