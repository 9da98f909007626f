#include "tools/snapshot/progress_line.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct Shown {
  ProgressLine::Clock::time_point now{};
  std::string text;

  ProgressLine::Output output(bool is_terminal) {
    return {.write = [this](const std::string& part) { text += part; },
            .is_terminal = is_terminal,
            .now = [this] { return now; }};
  }
};

TEST(ProgressLine, IsSilentForTwoSeconds) {
  Shown shown;
  {
    ProgressLine line("convert", shown.output(true));
    shown.now += milliseconds(1999);
    line.update(10, 100);
  }
  EXPECT_EQ(shown.text, "");
}

TEST(ProgressLine, IsWrittenAgainOnATerminalAndEndsWithItsLine) {
  Shown shown;
  {
    ProgressLine line("convert", shown.output(true));
    shown.now += milliseconds(2000);
    line.update(50'000'000, 200'000'000);
    shown.now += milliseconds(100);
    line.update(60'000'000, 200'000'000);
    shown.now += milliseconds(400);
    line.update(100'000'000, 200'000'000);
  }
  EXPECT_EQ(shown.text,
            "\rconvert: 25 % of 200 MB, 25.0 MB/s   \rconvert: 50 % of 200 MB, 40.0 MB/s   \n");
}

TEST(ProgressLine, IsALineEachTenSecondsElsewhere) {
  Shown shown;
  {
    ProgressLine line("convert", shown.output(false));
    for (int second = 1; second <= 15; ++second) {
      shown.now += milliseconds(1000);
      line.update(second, 20);
    }
  }
  EXPECT_EQ(shown.text, "convert: 10 % of 20 B, 1 B/s\nconvert: 60 % of 20 B, 1 B/s\n");
}

}  // namespace
}  // namespace lockstep
