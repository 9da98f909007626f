#include "lockstep/parameter_server/internal/trainer_watch.h"

#include <gtest/gtest.h>

namespace lockstep::parameter_server {
namespace {

using namespace std::chrono_literals;

TEST(TrainerWatch, FindsWhoNeitherCallsNorWaits) {
  TrainerWatch watch(10s);
  const TrainerWatch::Instant begin{1h};
  EXPECT_EQ(watch.find_silent({{0}, {0}}, begin), std::nullopt);
  EXPECT_EQ(watch.find_silent({{1}, {0}}, begin + 9s), std::nullopt);
  EXPECT_EQ(watch.find_silent({{1, true}, {0}}, begin + 11s), 1);
  EXPECT_EQ(watch.find_silent({{1, true}, {1}}, begin + 12s), std::nullopt);
  EXPECT_EQ(watch.find_silent({{1, true}, {2, true}}, begin + 100s), std::nullopt);
  EXPECT_EQ(watch.find_silent({{2}, {3}}, begin + 130s), std::nullopt)
      << "its time begins with the answer, however long nobody has looked";
  EXPECT_EQ(watch.find_silent({{2}, {4}}, begin + 141s), 0);
}

}  // namespace
}  // namespace lockstep::parameter_server
