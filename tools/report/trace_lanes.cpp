#include "tools/report/trace_lanes.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
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
constexpr double kUsPerMs = 1000;

struct NamedKind {
  const char* style;
  const char* name;
};
constexpr std::array<NamedKind, 4> kKinds = {{{"forward", "forward, optimizer and others"},
                                              {"backward", "backward"},
                                              {"exchange", "exchange of gradients"},
                                              {"device", "CUDA device"}}};

const NamedKind& named(LaneKind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

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

std::string draw_legend(const TraceLanes& lanes) {
  std::set<LaneKind> kinds;
  for (const Lane& lane : lanes.lanes) {
    for (const LaneSpan& span : lane.spans) kinds.insert(span.kind);
  }
  std::string html = "<p class=\"legend\">";
  for (const LaneKind kind : kinds) {
    html +=
        concat("<span class=\"", named(kind).style, "\">&#9632;</span> ", named(kind).name, " ");
  }
  return html + "</p>";
}

std::string draw_span(const LaneSpan& span, int rank, const Plot& lane, const Axis& across) {
  // The exchange and kernels run beside other work: they get the lower half.
  const bool is_half = span.kind == LaneKind::kExchange || span.kind == LaneKind::kDevice;
  const double height = is_half ? lane.height / 2 : lane.height;
  const double x = lane.x(across, span.begin_us / kUsPerMs);
  const double width = std::max(0.6, lane.x(across, span.end_us / kUsPerMs) - x);
  char place[160];
  std::snprintf(place, sizeof place, "x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"", x,
                lane.bottom() - height, width, height);
  char time[96];
  std::snprintf(time, sizeof time, "from %.3f ms, %.3f ms long", span.begin_us / kUsPerMs,
                (span.end_us - span.begin_us) / kUsPerMs);
  return concat("<rect class=\"", named(span.kind).style, "\" ", place, "><title>rank ", rank, ", ",
                named(span.kind).name, ": ", html_text(span.name), "\n", time, "</title></rect>");
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
    // Most operators lie within another of their kind: memory for those is saved.
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
  constexpr double kLane = 40;
  constexpr double kGap = 5;
  const Plot plot{.left = 70,
                  .top = 4,
                  .width = kWidth - 70 - 16,
                  .height = kLane * static_cast<double>(lanes.lanes.size())};
  const Axis across = make_exact_axis(0, std::max(lanes.duration_us / kUsPerMs, 1e-9), 10);
  std::string svg =
      concat(draw_legend(lanes), "<svg class=\"lanes\" viewBox=\"0 0 ", kWidth, " ",
             plot.bottom() + 44, "\" role=\"img\" aria-label=\"what each rank does over time\">",
             svg_axis(plot, across, /*has_grid=*/true, "ms"));
  Plot lane = plot;
  lane.top += kGap;
  lane.height = kLane - 2 * kGap;
  for (const Lane& each : lanes.lanes) {
    svg += svg_text("rank", "end", lane.left - 10, lane.top + lane.height / 2 + 4,
                    concat("rank ", each.rank));
    for (const LaneSpan& span : each.spans) svg += draw_span(span, each.rank, lane, across);
    lane.top += kLane;
  }
  return svg + "</svg>";
}

}  // namespace lockstep::inline internal
