#include "lockstep/ddp/exchange_report.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::nanoseconds;

struct Span {
  int started;
  int complete;
};

ExchangeReport added_up(const std::vector<Span>& spans, int backward) {
  ExchangeReport report;
  report.backward = nanoseconds(backward);
  std::int64_t bytes = 1;
  for (const auto& [started, complete] : spans) {
    report.buckets.push_back({.bytes = bytes,
                              .started = nanoseconds(started),
                              .complete = nanoseconds(complete),
                              .waited = nanoseconds(10 * bytes)});
    bytes *= 2;
  }
  add_up(report);
  return report;
}

TEST(ExchangeReport, OfNothingIsZero) {
  const ExchangeReport report = added_up({}, 100);
  EXPECT_EQ(report.in_flight.count(), 0);
  EXPECT_EQ(report.overlap_ratio, 0);
}

TEST(ExchangeReport, AddsBytesAndWaits) {
  const ExchangeReport report = added_up({{0, 1}, {2, 3}, {4, 5}}, 100);
  EXPECT_EQ(report.bytes, 7);
  EXPECT_EQ(report.waited.count(), 70);
}

TEST(ExchangeReport, CountsTimeThatExchangesShareOnce) {
  EXPECT_EQ(added_up({{0, 40}, {10, 30}, {20, 50}, {70, 80}}, 100).in_flight.count(), 60);
  EXPECT_EQ(added_up({{0, 40}, {40, 40}, {40, 50}}, 100).in_flight.count(), 50);
}

TEST(ExchangeReport, OverlapIsWhatBackwardHid) {
  EXPECT_EQ(added_up({{0, 40}, {60, 90}}, 100).overlap_ratio, 1);
  EXPECT_EQ(added_up({{100, 140}, {100, 190}}, 100).overlap_ratio, 0);
  EXPECT_EQ(added_up({{50, 150}}, 100).overlap_ratio, 0.5);
  EXPECT_EQ(added_up({{0, 60}, {50, 80}, {90, 110}}, 100).overlap_ratio, 0.9);
  EXPECT_EQ(added_up({{0, 0}}, 100).overlap_ratio, 0);
}

}  // namespace
}  // namespace lockstep
