#include "lockstep/train/duration.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

Duration every(const char* text) {
  return Duration::parse(text, "val_check_interval");
}

TEST(Duration, IsReachedInItsOwnUnit) {
  const TrainingTime time{.epochs = 2, .batches = 20, .samples = 640, .seconds = 3.5};
  EXPECT_TRUE(every("2ep").reached(time));
  EXPECT_FALSE(every("3ep").reached(time));
  EXPECT_TRUE(every("20ba").reached(time));
  EXPECT_FALSE(every("21ba").reached(time));
  EXPECT_TRUE(every("639sp").reached(time));
  EXPECT_FALSE(every("4sec").reached(time));
  EXPECT_TRUE(every("3sec").reached(time));
  EXPECT_FALSE(every("").reached(time)) << "no length";
}

TEST(Duration, IsDueWhereAMultipleIsPassed) {
  const auto at = [](std::int64_t samples) { return TrainingTime{.samples = samples}; };
  EXPECT_FALSE(every("100sp").due(at(0), at(99)));
  EXPECT_TRUE(every("100sp").due(at(99), at(131)));
  EXPECT_FALSE(every("100sp").due(at(131), at(163)));
  EXPECT_TRUE(every("100sp").due(at(195), at(227)));
  EXPECT_FALSE(every("").due(at(0), at(1000)));
}

TEST(Duration, IsSoManyEpochs) {
  EXPECT_EQ(every("3ep").epochs(10, 100), 3);
  EXPECT_EQ(every("20ba").epochs(10, 100), 2);
  EXPECT_EQ(every("21ba").epochs(10, 100), 3);
  EXPECT_EQ(every("1sp").epochs(10, 100), 1);
  EXPECT_EQ(every("9sec").epochs(10, 100), std::nullopt);
}

TEST(Duration, RefusesOtherText) {
  for (const char* text :
       {"10", "ep", "0ep", "-1ep", "1.5ep", "10 ep", "10eps", "99999999999999999999ba"}) {
    try {
      every(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("val_check_interval is '"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lockstep
