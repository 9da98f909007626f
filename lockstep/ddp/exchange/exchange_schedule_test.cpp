#include "lockstep/ddp/exchange/exchange_schedule.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Arrival = ExchangeSchedule::Arrival;

std::vector<std::size_t> take_all(ExchangeSchedule& schedule) {
  std::vector<std::size_t> taken;
  while (const auto bucket = schedule.take_next()) taken.push_back(*bucket);
  return taken;
}

using BucketPositions = std::vector<std::size_t>;

TEST(ExchangeSchedule, GivesOutCompleteBucketsInTheirOrder) {
  ExchangeSchedule schedule({0, 0, 1, 2}, 3);
  for (int pass = 0; pass < 2; ++pass) {
    schedule.begin({1, 1, 1, 1});
    EXPECT_EQ(take_all(schedule), BucketPositions{});
    EXPECT_EQ(schedule.arrive(2), Arrival::kComplete);
    EXPECT_EQ(schedule.arrive(1), Arrival::kComplete);
    EXPECT_EQ(take_all(schedule), BucketPositions{});
    EXPECT_EQ(schedule.arrive(0), Arrival::kComplete);
    EXPECT_EQ(take_all(schedule), (BucketPositions{0, 1}));
    EXPECT_EQ(schedule.arrive(3), Arrival::kComplete);
    EXPECT_EQ(take_all(schedule), BucketPositions{2});
    EXPECT_EQ(schedule.complete_all(), BucketPositions{});
    EXPECT_EQ(take_all(schedule), BucketPositions{});
  }
}

TEST(ExchangeSchedule, WaitsForAsManyAdditionsAsAreExpected) {
  ExchangeSchedule schedule({0, 1}, 2);
  schedule.begin({3, 1});
  EXPECT_EQ(schedule.arrive(0), Arrival::kPart);
  EXPECT_EQ(schedule.arrive(0), Arrival::kPart);
  EXPECT_EQ(take_all(schedule), BucketPositions{});
  EXPECT_EQ(schedule.arrive(0), Arrival::kComplete);
  EXPECT_EQ(take_all(schedule), BucketPositions{0});
}

TEST(ExchangeSchedule, TellsMoreOfACompleteGradientFromALateOne) {
  ExchangeSchedule schedule({1, 0, 1}, 2);
  schedule.begin({1, 1, 0});
  EXPECT_EQ(schedule.arrive(0), Arrival::kComplete);
  EXPECT_EQ(schedule.arrive(0), Arrival::kMore);
  EXPECT_EQ(schedule.arrive(2), Arrival::kMore);
  EXPECT_EQ(schedule.arrive(1), Arrival::kComplete);
  EXPECT_EQ(schedule.arrive(1), Arrival::kMore);
  EXPECT_EQ(take_all(schedule), (BucketPositions{0, 1}));
  EXPECT_EQ(schedule.arrive(0), Arrival::kLate);
}

TEST(ExchangeSchedule, TheEndCompletesWhatIsMissing) {
  ExchangeSchedule schedule({0, 1, 1}, 2);
  schedule.begin({1, 2, 1});
  EXPECT_EQ(schedule.arrive(1), Arrival::kPart);
  EXPECT_EQ(schedule.arrive(2), Arrival::kComplete);
  EXPECT_EQ(schedule.complete_all(), (BucketPositions{0, 1}));
  EXPECT_EQ(take_all(schedule), (BucketPositions{0, 1}));
}

TEST(ExchangeSchedule, LeavesOutWhatIsNotExchanged) {
  ExchangeSchedule schedule({0, ExchangeSchedule::kNoBucket}, 1);
  schedule.begin({1, 1});
  EXPECT_EQ(schedule.arrive(1), Arrival::kNotExchanged);
  EXPECT_EQ(schedule.complete_all(), BucketPositions{0});
  EXPECT_EQ(take_all(schedule), BucketPositions{0});
}

TEST(ExchangeSchedule, OfNothingHasNothingToGiveOut) {
  ExchangeSchedule schedule({}, 0);
  schedule.begin({});
  EXPECT_EQ(schedule.complete_all(), BucketPositions{});
  EXPECT_EQ(take_all(schedule), BucketPositions{});
}

}  // namespace
}  // namespace lockstep
