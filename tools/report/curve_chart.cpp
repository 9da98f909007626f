#include "tools/report/curve_chart.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "tools/report/axis.h"
#include "tools/report/html_text.h"

namespace lockstep::inline internal {
namespace {

// In the SVG's own units, which are pixels where the page is wide enough.
constexpr double kWidth = 560;
constexpr double kHeight = 260;
constexpr Plot kPlot{.left = 62, .top = 14, .width = kWidth - 62 - 16, .height = kHeight - 14 - 44};
constexpr std::size_t kColors = 6;  // The page's style has as many.

struct KnownMetric {
  std::string_view name;
  std::string_view title;
  std::string_view unit;
};
constexpr std::array kKnown = {
    KnownMetric{"loss", "Loss", ""},
    KnownMetric{"accuracy", "Accuracy", ""},
    KnownMetric{"lr", "Learning rate", ""},
    KnownMetric{"grad_norm", "Gradient norm", ""},
    KnownMetric{"phases", "Time of a step", "ms"},
    KnownMetric{"samples_per_second", "Throughput", "samples/s"},
    KnownMetric{"tokens_per_second", "Throughput in tokens", "tokens/s"},
    KnownMetric{"memory_gib", "Memory", "GiB"},
    KnownMetric{"memory_percent", "Memory in use", "%"},
};

// As a Trainer with `profiler` logs them.
constexpr std::array<std::string_view, 6> kPhases = {"data_ms",     "forward_ms",   "backward_ms",
                                                     "exchange_ms", "optimizer_ms", "other_ms"};

// "loss" of "val_loss".
std::string stem_of(const std::string& name) {
  if (std::ranges::find(kPhases, name) != kPhases.end()) return "phases";
  for (const std::string_view prefix : {"train_", "val_", "test_", "train/", "val/", "test/"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

struct Axes {
  Axis across;
  Axis up;
};

Axes axes_of(const ChartPlan& plan) {
  double first = std::numeric_limits<double>::max();
  double last = std::numeric_limits<double>::lowest();
  double least = first;
  double most = last;
  for (const Curve* const curve : plan.curves) {
    for (const CurvePoint& point : curve->points) {
      first = std::min(first, point.step);
      last = std::max(last, point.step);
      least = std::min(least, point.value);
      most = std::max(most, point.value);
    }
  }
  constexpr int kMostAcross = 6;
  constexpr int kMostUp = 5;
  return {make_exact_axis(first, last, kMostAcross), make_axis(least, most, kMostUp)};
}

std::string draw_axes(const ChartPlan& plan, const Axes& axes) {
  std::string svg = svg_axis(kPlot, axes.across, /*has_grid=*/false, "step");
  for (const double tick : axes.up.ticks) {
    const double y = kPlot.y(axes.up, tick);
    svg += svg_line("grid", kPlot.left, y, kPlot.left + kPlot.width, y) +
           svg_text("tick", "end", kPlot.left - 8, y + 4, short_number(tick));
  }
  return svg + concat("<g transform=\"rotate(-90)\">",
                      svg_text("label", "middle", -(kPlot.top + kPlot.height / 2), 14, plan.unit),
                      "</g>");
}

std::string draw_curve(const std::vector<CurvePoint>& points, const Axes& axes, std::size_t color) {
  std::string line;
  for (const CurvePoint& point : points) {
    line += concat(line.empty() ? "" : " ", place_text(kPlot.x(axes.across, point.step)), ",",
                   place_text(kPlot.y(axes.up, point.value)));
  }
  // With round ends the line of a single point is a dot.
  if (points.size() == 1) line += " " + line;
  return concat("<polyline class=\"curve c", color, "\" points=\"", line, "\"/>");
}

// For the page's script: [[x, y, step, value], …] a curve.
std::string hover_data(const std::vector<std::vector<CurvePoint>>& points, const ChartPlan& plan,
                       const Axes& axes) {
  std::string data;
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string list;
    for (const CurvePoint& point : points[i]) {
      char text[96];
      std::snprintf(text, sizeof text, "%s[%.1f,%.1f,%.0f,%.5g]", list.empty() ? "" : ",",
                    kPlot.x(axes.across, point.step), kPlot.y(axes.up, point.value), point.step,
                    point.value);
      list += text;
    }
    data += concat(i == 0 ? "" : ",", "{\"name\":", nlohmann::json(plan.curves[i]->name).dump(),
                   ",\"points\":[", list, "]}");
  }
  return html_text(concat("[", data, "]"));
}

std::string draw_legend(const ChartPlan& plan) {
  std::string html = "<p class=\"legend\">";
  for (std::size_t i = 0; i < plan.curves.size(); ++i) {
    html += concat("<span class=\"c", i, "\">", html_text(plan.curves[i]->name), "</span> ",
                   short_number(plan.curves[i]->points.back().value), " ");
  }
  return html + "</p>";
}

}  // namespace

std::vector<ChartPlan> plan_charts(const std::vector<Curve>& curves) {
  std::vector<std::pair<std::string, ChartPlan>> plans;  // By stem.
  for (const Curve& curve : curves) {
    if (curve.points.empty()) continue;
    const std::string stem = stem_of(curve.name);
    auto plan = std::ranges::find_if(plans, [&](const auto& each) {
      return each.first == stem && each.second.curves.size() < kColors;
    });
    if (plan == plans.end()) {
      const auto known = std::ranges::find(kKnown, stem, &KnownMetric::name);
      const bool is_known = known != kKnown.end();
      plans.emplace_back(stem, ChartPlan{.title = is_known ? std::string(known->title) : stem,
                                         .unit = is_known ? std::string(known->unit) : "",
                                         .curves = {}});
      plan = plans.end() - 1;
    }
    plan->second.curves.push_back(&curve);
  }
  std::stable_partition(plans.begin(), plans.end(),
                        [](const auto& plan) { return plan.first == "loss"; });
  std::vector<ChartPlan> charts;
  for (auto& [stem, plan] : plans) charts.push_back(std::move(plan));
  return charts;
}

std::string draw_chart(const ChartPlan& plan, const std::vector<double>& resumed_at) {
  constexpr std::size_t kColumns = 400;
  const Axes axes = axes_of(plan);
  std::vector<std::vector<CurvePoint>> points;
  for (const Curve* const curve : plan.curves) points.push_back(decimate(curve->points, kColumns));
  std::string svg =
      concat(draw_legend(plan), "<svg class=\"chart\" viewBox=\"0 0 ", kWidth, " ", kHeight,
             "\" role=\"img\" aria-label=\"", html_text(plan.title), " over steps\" data-top=\"",
             kPlot.top, "\" data-floor=\"", kPlot.bottom(), "\" data-curves=\"",
             hover_data(points, plan, axes), "\">", draw_axes(plan, axes));
  for (const double step : resumed_at) {
    const double x = kPlot.x(axes.across, step);
    if (x < kPlot.left || x > kPlot.left + kPlot.width) continue;
    char title[64];
    std::snprintf(title, sizeof title, "a run resumed at step %.0f", step);
    svg += svg_line("resumed", x, kPlot.top, x, kPlot.bottom(), title);
  }
  for (std::size_t i = 0; i < points.size(); ++i) svg += draw_curve(points[i], axes, i);
  return svg + "<g class=\"pointer\"></g></svg>";
}

}  // namespace lockstep::inline internal
