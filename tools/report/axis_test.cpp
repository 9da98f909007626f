#include "tools/report/axis.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Axis, HasRoundNumbers) {
  const Axis axis = make_axis(0.13, 2.31, 5);
  EXPECT_EQ(axis.ticks, (std::vector<double>{0, 0.5, 1, 1.5, 2, 2.5}));
  EXPECT_DOUBLE_EQ(axis.place(0), 0);
  EXPECT_DOUBLE_EQ(axis.place(1.25), 0.5);
  EXPECT_DOUBLE_EQ(make_axis(0, 2300, 5).most, 2500);
  EXPECT_EQ(make_axis(-3, 3, 3).ticks, (std::vector<double>{-4, -2, 0, 2, 4}));
}

TEST(Axis, HasRoomAroundASingleValue) {
  for (const double value : {0.0, 1e-3, -7.0, 1e9}) {
    const Axis axis = make_axis(value, value, 5);
    EXPECT_GT(axis.place(value), 0.1);
    EXPECT_LT(axis.place(value), 0.9);
    EXPECT_GE(axis.ticks.size(), 2U);
  }
}

TEST(Axis, MayEndBetweenTicks) {
  const Axis axis = make_exact_axis(3, 17, 5);
  EXPECT_EQ(axis.ticks, (std::vector<double>{5, 10, 15}));
  EXPECT_DOUBLE_EQ(axis.place(3), 0);
  EXPECT_DOUBLE_EQ(axis.place(17), 1);
  EXPECT_NEAR(make_exact_axis(3, 3, 5).place(3), 0.5, 1e-12);
}

TEST(Axis, HoldsAnyNumbers) {
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const std::vector<double> values = {-kMost, -1, -kLeast,   0,    kLeast,
                                      1e-300, 1,  1 + 1e-15, 1e15, kMost};
  for (const double least : values) {
    for (const double most : values) {
      if (most < least) continue;
      const Axis axis = make_axis(least, most, 5);
      EXPECT_GE(axis.ticks.size(), 1U) << least << " to " << most;
      EXPECT_LE(axis.ticks.size(), 9U) << least << " to " << most;
      EXPECT_TRUE(std::isfinite(axis.place(least)) && std::isfinite(axis.place(most)))
          << least << " to " << most;
    }
  }
}

TEST(ShortNumber, HasFewDigits) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.001), "0.001");
  EXPECT_EQ(short_number(0.00025), "0.00025");
  EXPECT_EQ(short_number(0.000012), "1.2e-05");
  EXPECT_EQ(short_number(2345.678), "2346");
  EXPECT_EQ(short_number(185753), "185.8k");
  EXPECT_EQ(short_number(-2.5e6), "-2500k");
  EXPECT_EQ(short_number(3e13), "3e+13");
}

}  // namespace
}  // namespace lockstep
