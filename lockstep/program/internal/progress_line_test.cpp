#include "lockstep/program/internal/progress_line.h"

#include <limits>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr Progress kHalfway{.epoch = 4,
                            .epochs = 10,
                            .step = 23,
                            .steps_per_epoch = 23,
                            .steps_per_second = 46,
                            .loss = 0.12345};

TEST(ProgressLine, ShowsBarPercentStepRateEtaAndLoss) {
  EXPECT_EQ(progress_line(kHalfway, {.columns = 90}),
            "epoch  5/10 [==========>            ]   50 %  step 23/23  46 step/s  eta 0:03"
            "  loss 0.1235");
}

TEST(ProgressLine, IsNeverWiderThanTheTerminal) {
  for (int columns = 0; columns < 200; ++columns) {
    const std::string line = progress_line(kHalfway, {.columns = columns});
    EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
  }
}

TEST(ProgressLine, LeavesOutTheBarFirstThenTheLastFields) {
  EXPECT_EQ(progress_line(kHalfway, {.columns = 70}),
            "epoch  5/10   50 %  step 23/23  46 step/s  eta 0:03  loss 0.1235");
  EXPECT_EQ(progress_line(kHalfway, {.columns = 41}), "epoch  5/10   50 %  step 23/23  46 step/s");
  EXPECT_EQ(progress_line(kHalfway, {.columns = 5}), "epoch");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnownYet) {
  EXPECT_EQ(progress_line({.epochs = 3, .steps_per_epoch = 7}, {.columns = 100, .bar = false}),
            "epoch 1/3    0 %  step 0/7");
}

TEST(ProgressLine, ColoursOnlyTheBarAndOnlyWhenAsked) {
  const std::string plain = progress_line(kHalfway, {.columns = 90});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  std::string colored = progress_line(kHalfway, {.columns = 90, .color = true});
  for (const std::string code : {"\x1b[32m", "\x1b[0m"}) {
    ASSERT_NE(colored.find(code), std::string::npos);
    colored.erase(colored.find(code), code.size());
  }
  EXPECT_EQ(colored, plain);
}

TEST(ProgressLine, SurvivesOddNumbers) {
  EXPECT_EQ(fraction_done({.epochs = 0, .steps_per_epoch = 0}), 1.0);
  EXPECT_EQ(fraction_done({.epoch = 5, .epochs = 3}), 1.0);
  Progress progress = kHalfway;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  progress.steps_per_second = 1e-300;
  EXPECT_NE(progress_line({.loss = 1e-9}, {}).find("loss 1.000e-09"), std::string::npos);
  const std::string line = progress_line(progress, {.columns = 200});
  EXPECT_NE(line.find("loss nan"), std::string::npos) << line;
  EXPECT_NE(line.find("eta 99:59:59"), std::string::npos) << line;
}

TEST(ClockText, HasHoursOnlyFromAnHourOn) {
  EXPECT_EQ(clock_text(std::chrono::seconds(0)), "0:00");
  EXPECT_EQ(clock_text(std::chrono::seconds(67)), "1:07");
  EXPECT_EQ(clock_text(std::chrono::seconds(3599)), "59:59");
  EXPECT_EQ(clock_text(std::chrono::seconds(3600)), "1:00:00");
}

}  // namespace
}  // namespace lockstep
