#include "bench/all_reduce/result.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/all_reduce/report.h"

namespace lockstep::bench {
namespace {

const std::vector<Subject> kSubjects = {
    {.name = "shm", .memory = "shared"},
    {.name = "gloo", .memory = "private"},
    {.name = kKernel, .memory = "shared", .is_limit = true, .traffic = 4}};

Sample sample(std::size_t subject, Placement before, Placement after, std::vector<double> times) {
  return {.subject = subject,
          .bytes = 1000,
          .before = before,
          .after = after,
          .call_us = std::move(times)};
}

constexpr auto kNear = Placement::kNear;
constexpr auto kFar = Placement::kFar;

TEST(BenchResult, LabelsWhatChangedMeanwhileAsMixed) {
  EXPECT_EQ(placement_label(kNear, kNear), "near");
  EXPECT_EQ(placement_label(kFar, kFar), "far");
  EXPECT_EQ(placement_label(kNear, kFar), "mixed");
  EXPECT_EQ(placement_label(Placement::kUnknown, Placement::kUnknown), "unknown");
}

TEST(BenchResult, TakesMediansOverTurnsAndRatiosWithinALabel) {
  const auto rows =
      make_rows(kSubjects,
                {sample(0, kNear, kNear, {1, 2, 9}), sample(0, kNear, kNear, {3, 2}),
                 sample(1, kNear, kNear, {200, 220, 180}), sample(2, kNear, kNear, {1}),
                 sample(0, kFar, kFar, {4}), sample(0, kNear, kFar, {100})},
                "gloo");
  ASSERT_EQ(rows.size(), 5U);
  const auto row_of = [&](const char* name, const char* placement) -> const Row& {
    for (const Row& row : rows) {
      if (row.subject.name == name && row.placement == placement) return row;
    }
    throw std::runtime_error("no such row");
  };
  const Row& near = row_of("shm", "near");
  EXPECT_EQ(near.us, 2);
  EXPECT_EQ(near.us_min, 1);
  EXPECT_EQ(near.us_p90, 9);
  EXPECT_EQ(near.calls, 5U);
  EXPECT_EQ(near.speedup, 100);
  EXPECT_EQ(near.share_of_kernel, 0.5);
  EXPECT_EQ(row_of("gloo", "near").speedup, 1);
  EXPECT_EQ(row_of(kKernel, "near").gb_per_s, 4);
  EXPECT_FALSE(row_of(kKernel, "near").speedup);
  EXPECT_FALSE(row_of("shm", "far").speedup);  // gloo has none that is far
  EXPECT_EQ(row_of("shm", "mixed").us, 100);
}

TEST(BenchResult, ComparesWithGlooWhereverItStands) {
  EXPECT_EQ(choose_baseline({"gloo", "shm"}), "gloo");
  EXPECT_EQ(choose_baseline({"shm", "mpi"}), "mpi");
}

Report small_report() {
  Report report{.ranks = 2, .cpus = 2, .cpu_model = "A", .libtorch = "2", .baseline = "gloo"};
  report.rows = make_rows(
      kSubjects,
      {sample(0, kNear, kNear, {2}), sample(1, kNear, kNear, {250}), sample(2, kNear, kNear, {1})},
      "gloo");
  return report;
}

TEST(BenchReport, JsonHasARowForEachBackendAndKeepsLimitsApart) {
  const auto json = nlohmann::json::parse(report_json(small_report()));
  ASSERT_EQ(json["rows"].size(), 2U);
  EXPECT_EQ(json["rows"][0]["backend"], "shm");
  EXPECT_EQ(json["rows"][0]["bytes"], 1000);
  EXPECT_EQ(json["rows"][0]["us"], 2.0);
  EXPECT_EQ(json["rows"][0]["placement"], "near");
  EXPECT_EQ(json["rows"][0]["speedup"], 125.0);
  ASSERT_EQ(json["limits"].size(), 1U);
  EXPECT_EQ(json["limits"][0]["limit"], "kernel");
}

TEST(BenchReport, TableHasSizesDownAndBackendsAcross) {
  const std::string text = report_table(small_report());
  EXPECT_NE(text.find("shm in place"), std::string::npos);
  EXPECT_NE(text.find("2.00    125x"), std::string::npos) << text;
  EXPECT_NE(text.find("processors near"), std::string::npos);
  EXPECT_EQ(text.find("processors far"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::bench
