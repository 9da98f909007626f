#include "tools/report/run_report.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/record/internal/trace_merge.h"
#include "tools/report/curve_chart.h"
#include "tools/report/html_text.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::vector<Curve> curves_named(const std::vector<std::string>& names) {
  std::vector<Curve> curves;
  for (const std::string& name : names)
    curves.push_back({.name = name, .points = {{1, 2}, {3, 4}}});
  return curves;
}

TEST(PlanCharts, PutsTogetherWhatIsComparedAndNamesUnits) {
  auto curves = curves_named({"samples_per_second", "train_loss", "val_accuracy", "val_loss",
                              "train/top5", "val/top5", "data_ms", "other_ms", "noise"});
  curves.push_back({.name = "empty", .points = {}});
  std::string text;
  for (const ChartPlan& plan : plan_charts(curves)) {
    text += concat(plan.title, " (", plan.unit, "):");
    for (const Curve* const curve : plan.curves) text += " " + curve->name;
    text += "\n";
  }
  EXPECT_EQ(text,
            "Loss (): train_loss val_loss\n"
            "Throughput (samples/s): samples_per_second\n"
            "Accuracy (): val_accuracy\n"
            "top5 (): train/top5 val/top5\n"
            "Time of a step (ms): data_ms other_ms\n"
            "noise (): noise\n");
}

TEST(PlanCharts, AChartHasNoMoreCurvesThanThereAreColours) {
  std::vector<std::string> names(8, "loss");
  const auto curves = curves_named(names);
  const auto plans = plan_charts(curves);
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[0].curves.size(), 6U);
}

TEST(DrawChart, MarksWhereARunWentOnAndEscapesNames) {
  const auto curves = curves_named({"train_<b>", "val_<b>"});
  const std::string svg = draw_chart(plan_charts(curves).front(), {2, 99});
  EXPECT_NE(svg.find("a run resumed at step 2<"), std::string::npos);
  EXPECT_EQ(svg.find("at step 99"), std::string::npos) << "it is beyond what is shown";
  EXPECT_NE(svg.find("train_&lt;b&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
}

TEST(HtmlText, CannotLeaveAnElementOrAnAttribute) {
  EXPECT_EQ(html_text("a<b>&\"'c'"), "a&lt;b&gt;&amp;&quot;'c'");
}

TEST(RunNotes, ARunThatHasNoEndWasKilled) {
  const RunNotes notes = parse_runs(
      R"({"event": "begin", "time": 1795420000, "step": 0, "ranks": 2, "machine": {"host": "a", "memory_bytes": 1610612736}}
{"event": "begin", "time": 1795420060, "step": 40, "ranks": 3}
{"event": "end", "time": 1795420100.5, "step": 90, "how": "ended"}
{"event": "end"}
)",
      "runs.jsonl");
  ASSERT_EQ(notes.runs.size(), 2U);
  EXPECT_EQ(notes.runs[0].host, "a");
  EXPECT_EQ(notes.runs[0].ranks, 2);
  EXPECT_EQ(notes.runs[1].ranks, 3);
  EXPECT_FALSE(notes.runs[0].end_seconds);
  EXPECT_EQ(notes.runs[1].first_step, 40);
  EXPECT_EQ(notes.runs[1].end_step, 90);
  EXPECT_EQ(notes.runs[1].how, "ended");
  EXPECT_EQ(notes.problems, (std::vector<std::string>{"runs.jsonl: line 4 is damaged, left out"}));
}

TEST(RunNotes, TimesInWords) {
  EXPECT_EQ(time_in_words(-1), "");
  EXPECT_EQ(time_in_words(1e300), "");
  EXPECT_EQ(time_in_words(1795420000), "2026-11-23 07:46:40 UTC");
}

TEST(TraceLanes, SpansThatAreCloseTogetherBecomeOne) {
  const TemporaryDirectory folder(std::filesystem::temp_directory_path(), "lanes-");
  json events = json::array();
  const auto add = [&](int process, const char* name, double begin, double length) {
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"pid", process},
                      {"tid", 1},
                      {"ts", begin},
                      {"dur", length}});
  };
  for (int i = 0; i < 10'000; ++i)
    add(0, i % 5 == 2 ? "aten::mm" : "aten::add", i * 100.0, i % 5 == 2 ? 90 : 50);
  add(0, "lockstep::wait for bucket 0", 1'000'000, 500);
  add(0, kClockSpan, 1'000'600, 5);
  add(1, "autograd::engine::evaluate_function: X", 20, 1000);
  add(1, "autograd::engine::evaluate_function: Y", 30, 10);
  add(1'000'001, "kernel", 40, 10);
  const auto path = folder.path() / "t.json";
  std::ofstream(path) << json{{"traceEvents", events}}.dump();
  const TraceLanes lanes = read_lanes(path);
  ASSERT_EQ(lanes.lanes.size(), 2U);
  EXPECT_EQ(lanes.duration_us, 1'000'500);
  EXPECT_LE(lanes.lanes[0].spans.size(), 1300U);
  EXPECT_EQ(lanes.lanes[0].spans.front().name, "aten::mm");
  EXPECT_EQ(lanes.lanes[0].spans.back().kind, LaneKind::kExchange);
  ASSERT_EQ(lanes.lanes[1].spans.size(), 2U);
  EXPECT_EQ(lanes.lanes[1].spans[0].end_us, 1020);
  EXPECT_EQ(lanes.lanes[1].spans[1].kind, LaneKind::kDevice);
  EXPECT_NE(draw_lanes(lanes).find("CUDA device"), std::string::npos);
}

TEST(PageOf, CountsTheRunningEpoch) {
  RunReport report;
  report.metrics.last_epoch = 2;  // Counted from 0.
  EXPECT_NE(page_of(report).find("<b>3</b><span>epochs begun</span>"), std::string::npos);
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(PageOf, BoundsChartsRowsAndMarksAndSaysWhatIsLeftOut) {
  RunReport report;
  for (int i = 0; i < 5'000; ++i) {
    report.metrics.curves.push_back({.name = concat("metric ", i), .points = {{0, 1}, {600, 2}}});
  }
  for (int i = 0; i < 500; ++i) {
    report.runs.runs.push_back({.first_step = i, .host = concat("host ", i)});
    report.snapshots.push_back({.name = concat("snapshot ", i)});
  }
  const std::string page = page_of(report);
  EXPECT_EQ(occurrences(page, "<svg"), 60U);
  EXPECT_EQ(occurrences(page, "class=\"resumed\""), 60U * 100U);
  EXPECT_EQ(occurrences(page, "<td>host "), 100U);
  EXPECT_EQ(occurrences(page, "<td>host 400</td>"), 1U);
  EXPECT_EQ(occurrences(page, "<td>snapshot "), 100U);
  EXPECT_EQ(occurrences(page,
                        "<p class=\"sub\">4940 charts of further metrics in metrics.jsonl are left "
                        "out.</p>"),
            1U);
  EXPECT_EQ(
      occurrences(page, "<p class=\"sub\">399 earlier marks of resumed runs are left out.</p>"),
      1U);
  EXPECT_EQ(occurrences(page, "<p class=\"sub\">400 earlier rows are left out.</p>"), 2U);
  EXPECT_LT(page.size(), 2'000'000U);
}

TEST(PageOf, LeavesNothingOutOfAPageWithinTheBounds) {
  RunReport report;
  for (int i = 0; i < 60; ++i) {
    report.metrics.curves.push_back({.name = concat("metric ", i), .points = {{0, 1}, {600, 2}}});
  }
  for (int i = 0; i < 100; ++i) report.runs.runs.push_back({.first_step = i + 1});
  EXPECT_EQ(occurrences(page_of(report), "left out"), 0U);
}

}  // namespace
}  // namespace lockstep
