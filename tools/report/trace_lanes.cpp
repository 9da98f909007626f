#include "tools/report/trace_lanes.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/record/internal/trace_events.h"
#include "lockstep/record/internal/trace_merge.h"
#include "tools/report/axis.h"
#include "tools/report/html_text.h"

namespace lockstep::inline internal {
namespace {

constexpr double kSpans = 1200;
constexpr std::int64_t kDevicesFrom = 1'000'000;  // As trace_merge.cpp numbers processes.
constexpr std::array kNames = {"forward, optimizer and others", "backward", "exchange of gradients",
                               "CUDA device"};
constexpr std::array kClasses = {"forward", "backward", "exchange", "device"};

LaneKind kind_of(std::string_view name, std::int64_t process) {
  if (process >= kDevicesFrom) return LaneKind::kDevice;
  if (name.starts_with("lockstep::")) return LaneKind::kExchange;
  if (name.starts_with("autograd::engine")) return LaneKind::kBackward;
  return LaneKind::kForward;
}

std::vector<LaneSpan> joined(std::vector<LaneSpan> spans, double gap_us) {
  std::ranges::sort(spans, {}, &LaneSpan::begin_us);
  std::vector<LaneSpan> result;
  for (LaneSpan& span : spans) {
    if (result.empty() || span.begin_us > result.back().end_us + gap_us) {
      result.push_back(std::move(span));
      continue;
    }
    LaneSpan& last = result.back();
    last.end_us = std::max(last.end_us, span.end_us);
    if (span.named_us > last.named_us) {
      last.name = std::move(span.name);
      last.named_us = span.named_us;
    }
  }
  return result;
}

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

TraceLanes read_lanes(const std::filesystem::path& timeline) {
  std::map<std::pair<int, LaneKind>, std::vector<LaneSpan>> spans;
  TraceLanes result;
  read_trace(timeline, [&](const nlohmann::json& event) {
    if (event.value("ph", "") != "X" || !event.contains("pid") || !event["pid"].is_number_integer())
      return;
    const auto process = event["pid"].get<std::int64_t>();
    const std::string name = event.value("name", "");
    if (name == kClockSpan) return;
    const double begin = event.value("ts", 0.0);
    const double length = event.value("dur", 0.0);
    result.duration_us = std::max(result.duration_us, begin + length);
    const LaneKind kind = kind_of(name, process);
    auto& own = spans[{static_cast<int>(process % kDevicesFrom), kind}];
    // What lies within another of its kind, as most operators do, is not kept.
    if (!own.empty() && begin >= own.back().begin_us && begin + length <= own.back().end_us) return;
    own.push_back({.kind = kind,
                   .begin_us = begin,
                   .end_us = begin + length,
                   .name = name,
                   .named_us = length});
  });
  for (auto& [key, own] : spans) {
    if (result.lanes.empty() || result.lanes.back().rank != key.first) {
      result.lanes.push_back({.rank = key.first});
    }
    auto& lane = result.lanes.back().spans;
    const auto close = joined(std::move(own), result.duration_us / kSpans);
    lane.insert(lane.end(), close.begin(), close.end());
  }
  return result;
}

std::string draw_lanes(const TraceLanes& lanes) {
  constexpr double kWidth = 1120;
  constexpr double kLeft = 70;
  constexpr double kRight = 16;
  constexpr double kTop = 34;
  constexpr double kLane = 40;
  constexpr double kBar = 30;
  constexpr double kBottom = 40;
  constexpr double kPlotWidth = kWidth - kLeft - kRight;
  const double floor = kTop + kLane * static_cast<double>(lanes.lanes.size());
  constexpr double kPerMs = 1000;
  Axis axis = make_axis(0, lanes.duration_us / kPerMs, 10);
  axis.most = std::max(lanes.duration_us / kPerMs, 1e-9);
  std::erase_if(axis.ticks, [&](double tick) { return tick > axis.most; });
  std::string svg = concat("<svg class=\"lanes\" viewBox=\"0 0 ", kWidth, " ", floor + kBottom,
                           "\" role=\"img\" aria-label=\"what each rank does over time\">");
  std::array<bool, kNames.size()> is_there{};
  for (const Lane& lane : lanes.lanes) {
    for (const LaneSpan& span : lane.spans) is_there[static_cast<std::size_t>(span.kind)] = true;
  }
  double x = kLeft;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (!is_there[i]) continue;
    constexpr double kPerLetter = 7.2;
    svg += concat("<rect class=\"", kClasses[i], "\" x=\"", x,
                  "\" y=\"6\" width=\"14\" height=\"14\"/><text class=\"tick\" x=\"", x + 20,
                  "\" y=\"18\">", kNames[i], "</text>");
    x += 44 + kPerLetter * static_cast<double>(std::string_view(kNames[i]).size());
  }
  for (const double tick : axis.ticks) {
    const std::string at = fixed(kLeft + axis.place(tick) * kPlotWidth, 1);
    svg += concat("<line class=\"grid\" x1=\"", at, "\" x2=\"", at, "\" y1=\"", kTop, "\" y2=\"",
                  floor, "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"", at, "\" y=\"",
                  floor + 16, "\">", short_number(tick), "</text>");
  }
  svg += concat("<text class=\"label\" text-anchor=\"middle\" x=\"", kLeft + kPlotWidth / 2,
                "\" y=\"", floor + 34, "\">ms</text>");
  for (std::size_t i = 0; i < lanes.lanes.size(); ++i) {
    const double y = kTop + kLane * static_cast<double>(i) + (kLane - kBar) / 2;
    svg += concat("<text class=\"rank\" text-anchor=\"end\" dominant-baseline=\"middle\" x=\"",
                  kLeft - 10, "\" y=\"", y + kBar / 2, "\">rank ", lanes.lanes[i].rank, "</text>");
    for (const LaneSpan& span : lanes.lanes[i].spans) {
      // The exchange stands out below what it is within, a device's kernels too.
      const bool is_half = span.kind == LaneKind::kExchange || span.kind == LaneKind::kDevice;
      const double begin = kLeft + axis.place(span.begin_us / kPerMs) * kPlotWidth;
      const double width =
          std::max(0.6, (span.end_us - span.begin_us) / kPerMs / axis.most * kPlotWidth);
      svg += concat("<rect class=\"", kClasses[static_cast<std::size_t>(span.kind)], "\" x=\"",
                    fixed(begin, 2), "\" y=\"", y + (is_half ? kBar / 2 : 0), "\" width=\"",
                    fixed(width, 2), "\" height=\"", is_half ? kBar / 2 : kBar, "\"><title>rank ",
                    lanes.lanes[i].rank, ", ", kNames[static_cast<std::size_t>(span.kind)], ": ",
                    html_text(span.name), "\nfrom ", fixed(span.begin_us / kPerMs, 3), " ms, ",
                    fixed((span.end_us - span.begin_us) / kPerMs, 3), " ms long</title></rect>");
    }
  }
  return svg + "</svg>";
}

}  // namespace lockstep::inline internal
