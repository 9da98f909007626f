#include "lockstep/os/machine/core_distance.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/os/machine/affinity.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

TEST(CoreDistance, TellsNearFromFarByTheRoundTrip) {
  EXPECT_EQ(classify_round_trip(0), Placement::kUnknown);
  EXPECT_EQ(classify_round_trip(45), Placement::kNear);
  EXPECT_EQ(classify_round_trip(98), Placement::kNear);
  EXPECT_EQ(classify_round_trip(200), Placement::kFar);
  EXPECT_EQ(classify_round_trip(750), Placement::kFar);
  EXPECT_STREQ(placement_name(Placement::kFar), "far");
}

TEST(CoreDistance, TakesNoLongerThanItPromisesAndGivesTheProcessorsBack) {
  const auto before = allowed_cpus();
  const auto start = std::chrono::steady_clock::now();
  const CoreDistance distance = measure_core_distance();
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(allowed_cpus(), before);
  EXPECT_LT(elapsed, milliseconds(2000));  // the deadline of 20 ms, on a machine that may be busy
  if (before.size() < 2) {
    EXPECT_EQ(distance.placement, Placement::kUnknown);
  } else if (distance.placement != Placement::kUnknown) {
    EXPECT_GT(distance.round_trip_ns, 5);
    EXPECT_LT(distance.round_trip_ns, 1e6);
  }
}

TEST(CoreDistance, IsUnknownForOneProcessorAndForOneThatDoesNotExist) {
  const auto cpus = allowed_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_EQ(measure_core_distance(cpus[0], cpus[0]).placement, Placement::kUnknown);
  EXPECT_EQ(measure_core_distance(cpus[0], 100'000).placement, Placement::kUnknown);
  EXPECT_EQ(measure_core_distance(100'000, cpus[0]).placement, Placement::kUnknown);
  EXPECT_EQ(allowed_cpus(), cpus);
}

TEST(CoreDistance, ALineCanBeUsedAgain) {
  std::atomic<std::uint32_t> line{0};
  for (int use = 0; use < 2; ++use) {
    const auto deadline = Deadline::after(milliseconds(10'000));
    bool answered = false;
    std::thread other([&] { answered = pong(line, 1000, deadline); });
    EXPECT_TRUE(ping(line, 1000, deadline).has_value());
    other.join();
    EXPECT_TRUE(answered);
    EXPECT_EQ(line.load() % 2, 0U);
  }
}

TEST(CoreDistance, NeitherSideWaitsForOneThatDoesNotCome) {
  std::atomic<std::uint32_t> line{0};
  EXPECT_FALSE(pong(line, 10, Deadline::after(milliseconds(5))));
  EXPECT_FALSE(ping(line, 1000, Deadline::after(milliseconds(5))).has_value());
}

}  // namespace
}  // namespace lockstep
