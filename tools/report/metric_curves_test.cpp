#include "tools/report/metric_curves.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

TEST(MetricCurves, EachMetricIsACurveOverSteps) {
  const MetricCurves read = parse_metrics(
      R"({"step": 10, "epoch": 0, "samples": 320, "seconds": 1.5, "train_loss": 2.5, "lr": null}
{"step": 10, "epoch": 0, "val_loss": 2}
{"step": 20, "epoch": 1, "samples": 640, "seconds": 3, "train_loss": 1.5})",
      "metrics.jsonl");
  ASSERT_EQ(read.curves.size(), 2U);
  EXPECT_EQ(read.curves[0].name, "train_loss");
  EXPECT_EQ(read.curves[0].points, (std::vector<CurvePoint>{{10, 2.5}, {20, 1.5}}));
  EXPECT_EQ(read.curves[1].points, (std::vector<CurvePoint>{{10, 2}}));
  EXPECT_EQ(read.last_step, 20);
  EXPECT_EQ(read.last_epoch, 1);
  EXPECT_EQ(read.seconds, 3);
  EXPECT_TRUE(read.went_back_to.empty());
}

TEST(MetricCurves, ARunThatGoesOnReplacesWhatWasGivenUp) {
  std::string text;
  for (const auto& [step, loss] : {std::pair(10, 5), {20, 4}, {30, 3}, {20, 7}, {30, 6}}) {
    text += concat("{\"step\": ", step, ", \"loss\": ", loss, "}\n");
  }
  const MetricCurves read = parse_metrics(text, "metrics.jsonl");
  EXPECT_EQ(read.curves[0].points, (std::vector<CurvePoint>{{10, 5}, {20, 7}, {30, 6}}));
  EXPECT_EQ(read.went_back_to, (std::vector<double>{20}));
}

TEST(MetricCurves, ARunThatSaysWhereItGoesOnLeavesNoPointOfALostRun) {
  const MetricCurves read = parse_metrics(
      R"({"step": 10, "loss": 5}
{"step": 11, "loss": 4}
{"step": 12, "loss": 3}
{"step": 10, "epoch": 1, "samples": 320, "seconds": 1.5, "resumed": true}
{"step": 12, "loss": 7}
{"step": 12, "epoch": 1, "samples": 340, "seconds": 1.6, "resumed": true}
{"step": 13, "loss": 6})",
      "metrics.jsonl");
  ASSERT_EQ(read.curves.size(), 1U);
  EXPECT_EQ(read.curves[0].points, (std::vector<CurvePoint>{{10, 5}, {12, 7}, {13, 6}}));
  EXPECT_EQ(read.went_back_to, (std::vector<double>{10}));
  EXPECT_TRUE(read.problems.empty());
}

TEST(MetricCurves, DamagedLinesAreNamed) {
  std::string text = "{\"step\": 1, \"loss\": 2}\n\n{\"ste\n[1]\n{\"step\": \"x\"}\n";
  EXPECT_EQ(
      parse_metrics(text, "m").problems,
      (std::vector<std::string>{"m: line 2 is damaged, left out", "m: line 3 is damaged, left out",
                                "m: line 4 is damaged, left out"}));
  EXPECT_EQ(parse_metrics("{\"step\": -1}\n{\"step\": 1e99}\n{}\n", "m").problems.size(), 3U);
  for (int i = 0; i < 20; ++i) text += "x\n";
  EXPECT_EQ(parse_metrics(text, "m").problems.back(), "m: 18 more damaged lines");
}

TEST(MetricCurves, AFolderWithoutThemIsRefused) {
  const TemporaryDirectory folder(std::filesystem::temp_directory_path(), "curves-");
  EXPECT_THROW(read_metrics(folder.path()), UsageError);
  EXPECT_THROW(read_metrics(folder.path() / "none"), UsageError);
  std::ofstream(folder.path() / "metrics.jsonl") << "";
  EXPECT_THROW(read_metrics(folder.path()), UsageError);
  std::ofstream(folder.path() / "metrics.jsonl") << "{\"step\": 1, \"loss\": 2}\n";
  EXPECT_EQ(read_metrics(folder.path()).curves.size(), 1U);
}

TEST(MetricCurves, DecimatedTheyKeepTheirPeaks) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({double(i), double(i % 97)});
  points[54'321].value = 1e6;
  points[54'322].value = -1e6;
  const auto kept = decimate(points, 500);
  EXPECT_LE(kept.size(), 2000U);
  EXPECT_EQ(kept.front(), points.front());
  EXPECT_EQ(kept.back(), points.back());
  EXPECT_NE(std::ranges::find(kept, points[54'321]), kept.end());
  EXPECT_NE(std::ranges::find(kept, points[54'322]), kept.end());
  EXPECT_TRUE(std::ranges::is_sorted(kept, {}, &CurvePoint::step));
  EXPECT_EQ(decimate({}, 500).size(), 0U);
  EXPECT_EQ(decimate({{1, 2}}, 500).size(), 1U);
  EXPECT_EQ(decimate(std::vector<CurvePoint>(5000, {1, 2}), 500).size(), 2U);
}

}  // namespace
}  // namespace lockstep
