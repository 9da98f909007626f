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
constexpr double kLeft = 62;
constexpr double kRight = 136;  // For the names of curves.
constexpr double kTop = 14;
constexpr double kBottom = 44;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr int kColors = 6;  // That the page's style has.
constexpr double kLabelHeight = 30;
constexpr double kDotRadius = 3;

struct Known {
  std::string_view name;
  std::string_view title;
  std::string_view unit;
  bool may_be_log = false;
};
constexpr std::array kKnown = {
    Known{"loss", "Loss", "", true},
    Known{"accuracy", "Accuracy", ""},
    Known{"lr", "Learning rate", "", true},
    Known{"grad_norm", "Gradient norm", "", true},
    Known{"phases", "Time of a step", "ms"},
    Known{"samples_per_second", "Throughput", "samples/s"},
    Known{"tokens_per_second", "Throughput in tokens", "tokens/s"},
    Known{"memory_gib", "Memory", "GiB"},
    Known{"memory_percent", "Memory in use", "%"},
};

// As a Trainer with `profiler` says where the time of a step goes.
constexpr std::array<std::string_view, 6> kPhases = {"data_ms",     "forward_ms",   "backward_ms",
                                                     "exchange_ms", "optimizer_ms", "other_ms"};

// "val_loss" as "loss".
std::string stem_of(const std::string& name) {
  if (std::ranges::find(kPhases, name) != kPhases.end()) return "phases";
  for (const std::string_view prefix : {"train_", "val_", "test_", "train/", "val/", "test/"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

const Known* known(const std::string& stem) {
  const auto found = std::ranges::find(kKnown, stem, &Known::name);
  return found == kKnown.end() ? nullptr : &*found;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

struct Frame {
  Axis across;
  Axis up;
  double x(double step) const { return kLeft + across.place(step) * kPlotWidth; }
  double y(double value) const { return kTop + (1 - up.place(value)) * kPlotHeight; }
};

Frame frame_of(const ChartPlan& plan) {
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
  Frame frame{.across = make_axis(first, last, kMostAcross),
              .up = make_axis(least, most, kMostUp, plan.may_be_log)};
  // Curves reach from side to side.
  if (last > first) {
    frame.across.least = first;
    frame.across.most = last;
    std::erase_if(frame.across.ticks, [&](double tick) { return tick < first || tick > last; });
  }
  return frame;
}

std::string draw_axes(const ChartPlan& plan, const Frame& frame) {
  std::string svg;
  for (const double tick : frame.up.ticks) {
    const std::string y = number(frame.y(tick));
    svg += concat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kLeft + kPlotWidth, "\" y1=\"",
                  y, "\" y2=\"", y,
                  "\"/><text class=\"tick\" text-anchor=\"end\" dominant-baseline=\"middle\" x=\"",
                  kLeft - 8, "\" y=\"", y, "\">", short_number(tick), "</text>");
  }
  const double floor = kTop + kPlotHeight;
  for (const double tick : frame.across.ticks) {
    const std::string x = number(frame.x(tick));
    svg += concat("<line class=\"axis\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", floor, "\" y2=\"",
                  floor + 4, "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"", x, "\" y=\"",
                  floor + 18, "\">", short_number(tick), "</text>");
  }
  svg += concat("<line class=\"axis\" x1=\"", kLeft, "\" x2=\"", kLeft + kPlotWidth, "\" y1=\"",
                floor, "\" y2=\"", floor, "\"/><text class=\"label\" text-anchor=\"middle\" x=\"",
                kLeft + kPlotWidth / 2, "\" y=\"", kHeight - 6, "\">step</text>");
  if (!plan.unit.empty()) {
    svg += concat("<text class=\"label\" text-anchor=\"middle\" transform=\"rotate(-90)\" x=\"",
                  -(kTop + kPlotHeight / 2), "\" y=\"14\">", html_text(plan.unit), "</text>");
  }
  return svg;
}

std::string draw_curve(const std::vector<CurvePoint>& points, const Frame& frame,
                       std::size_t color) {
  if (points.size() == 1) {
    return concat("<circle class=\"dot c", color, "\" r=\"", kDotRadius, "\" cx=\"",
                  number(frame.x(points[0].step)), "\" cy=\"", number(frame.y(points[0].value)),
                  "\"/>");
  }
  std::string line;
  for (const CurvePoint& point : points) {
    line += concat(line.empty() ? "" : " ", number(frame.x(point.step)), ",",
                   number(frame.y(point.value)));
  }
  return concat("<polyline class=\"curve c", color, "\" points=\"", line, "\"/>");
}

// As much as there is room for.
std::string shortened(const std::string& name) {
  constexpr std::size_t kLetters = 16;
  if (name.size() <= kLetters) return name;
  std::size_t end = kLetters - 1;
  const auto is_within_letter = [&] {
    return (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80;
  };
  while (end > 0 && is_within_letter()) --end;  // Of UTF-8.
  return name.substr(0, end) + "\u2026";
}

// Each at the height of its curve's end, or as near as others leave room.
std::string draw_labels(const ChartPlan& plan, const Frame& frame) {
  struct Label {
    double y = 0;
    std::size_t curve = 0;
  };
  std::vector<Label> labels;
  for (std::size_t i = 0; i < plan.curves.size(); ++i) {
    labels.push_back({frame.y(plan.curves[i]->points.back().value), i});
  }
  std::ranges::stable_sort(labels, {}, &Label::y);
  double free_from = kTop;
  for (Label& label : labels) {
    label.y = std::max(label.y, free_from);
    free_from = label.y + kLabelHeight;
  }
  double free_to = kTop + kPlotHeight - kLabelHeight / 2;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    label->y = std::min(label->y, free_to);
    free_to = label->y - kLabelHeight;
  }
  std::string svg;
  for (const Label& label : labels) {
    const Curve& curve = *plan.curves[label.curve];
    const std::string x = number(kLeft + kPlotWidth + 10);
    if (plan.curves.size() == 1 && stem_of(curve.name) == curve.name) {  // The title tells it.
      svg += concat("<text class=\"name c0\" dominant-baseline=\"middle\" x=\"", x, "\" y=\"",
                    number(label.y), "\">", short_number(curve.points.back().value), "</text>");
      continue;
    }
    svg += concat("<text class=\"name c", label.curve % kColors, "\" x=\"", x, "\" y=\"",
                  number(label.y), "\"><title>", html_text(curve.name), "</title>",
                  html_text(shortened(curve.name)), "<tspan class=\"last\" x=\"", x,
                  "\" dy=\"14\">", short_number(curve.points.back().value), "</tspan></text>");
  }
  return svg;
}

// For the page's script: [[x, y, step, value], …] a curve.
std::string hover_data(const std::vector<std::vector<CurvePoint>>& points, const ChartPlan& plan,
                       const Frame& frame) {
  std::string data;
  for (std::size_t i = 0; i < points.size(); ++i) {
    std::string list;
    for (const CurvePoint& point : points[i]) {
      char text[96];
      std::snprintf(text, sizeof text, "%s[%.1f,%.1f,%.0f,%.5g]", list.empty() ? "" : ",",
                    frame.x(point.step), frame.y(point.value), point.step, point.value);
      list += text;
    }
    data += concat(i == 0 ? "" : ",", "{\"name\":", nlohmann::json(plan.curves[i]->name).dump(),
                   ",\"points\":[", list, "]}");
  }
  return html_text(concat("[", data, "]"));
}

}  // namespace

std::vector<ChartPlan> plan_charts(const std::vector<Curve>& curves) {
  std::vector<std::pair<std::string, ChartPlan>> plans;  // By stem.
  for (const Curve& curve : curves) {
    if (curve.points.empty()) continue;
    const std::string stem = stem_of(curve.name);
    auto found = std::ranges::find_if(plans, [&](const auto& plan) {
      return plan.first == stem && plan.second.curves.size() < kColors;
    });
    if (found == plans.end()) {
      const Known* const one = known(stem);
      plans.emplace_back(stem, ChartPlan{.title = one != nullptr ? std::string(one->title) : stem,
                                         .unit = one != nullptr ? std::string(one->unit) : "",
                                         .may_be_log = one != nullptr && one->may_be_log,
                                         .curves = {}});
      found = plans.end() - 1;
    }
    found->second.curves.push_back(&curve);
  }
  std::stable_partition(plans.begin(), plans.end(),
                        [](const auto& plan) { return plan.first == "loss"; });
  std::vector<ChartPlan> charts;
  for (auto& [stem, plan] : plans) charts.push_back(std::move(plan));
  return charts;
}

std::string draw_chart(const ChartPlan& plan, const std::vector<double>& resumed_at) {
  constexpr std::size_t kColumns = 400;
  const Frame frame = frame_of(plan);
  std::vector<std::vector<CurvePoint>> points;
  for (const Curve* const curve : plan.curves) points.push_back(decimate(curve->points, kColumns));
  std::string svg = concat(
      "<svg class=\"chart\" viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-label=\"",
      html_text(plan.title), " over steps\" data-top=\"", kTop, "\" data-floor=\"",
      kTop + kPlotHeight, "\" data-curves=\"", hover_data(points, plan, frame), "\">");
  svg += draw_axes(plan, frame);
  for (const double step : resumed_at) {
    const double place = frame.across.place(step);
    if (place < 0 || place > 1) continue;
    const std::string x = number(frame.x(step));
    svg += concat("<line class=\"resumed\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", kTop, "\" y2=\"",
                  kTop + kPlotHeight, "\"><title>a run went on here, at step ", number(step),
                  "</title></line>");
  }
  for (std::size_t i = 0; i < points.size(); ++i) svg += draw_curve(points[i], frame, i % kColors);
  svg += draw_labels(plan, frame);
  return svg + "<g class=\"pointer\"></g></svg>";
}

}  // namespace lockstep::inline internal
