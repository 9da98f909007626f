#include "lockstep/comm/backends/shm/distance_watch.h"

#include <gtest/gtest.h>

namespace lockstep::shm {
namespace {

using std::chrono::nanoseconds;

TEST(DistanceWatch, AnswersOnceAWindow) {
  DistanceWatch watch;
  for (std::size_t i = 1; i < 3 * DistanceWatch::kSamples; ++i) {
    EXPECT_EQ(watch.add(nanoseconds(30)).has_value(), i % DistanceWatch::kSamples == 0);
  }
}

TEST(DistanceWatch, TakesNoNoticeOfAFew) {
  DistanceWatch watch;
  std::optional<Placement> answer;
  // Interruptions among near ones, then lines that were there already among far ones.
  for (std::size_t i = 0; i < DistanceWatch::kSamples; ++i) {
    answer = watch.add(nanoseconds(i < 7 ? 90'000 : 40));
  }
  EXPECT_EQ(answer, Placement::kNear);
  for (std::size_t i = 0; i < DistanceWatch::kSamples; ++i) {
    answer = watch.add(nanoseconds(i < 7 ? 20 : 230));
  }
  EXPECT_EQ(answer, Placement::kFar);
}

}  // namespace
}  // namespace lockstep::shm
