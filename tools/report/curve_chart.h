#pragma once

#include <string>
#include <vector>

#include "tools/report/metric_curves.h"

namespace lockstep::inline internal {

/// Curves that are shown on one pair of axes.
struct ChartPlan {
  std::string title;
  std::string unit;  ///< of values; empty: a number without one
  /// Values that are spread widely are shown by powers of ten.
  bool may_be_log = false;
  std::vector<const Curve*> curves;
};

/// Which curves go together: losses with losses, a metric of training with the same of validation,
/// the phases of a step; each else by itself, with its unit where that is known by its name. Losses
/// first. Pure; refers to `curves`.
std::vector<ChartPlan> plan_charts(const std::vector<Curve>& curves);

/// The chart as inline SVG, with axes, units, the last value of each curve at its end, and its name
/// unless it is a lone one that the title tells, a
/// mark where a run went on, and the points for the page's script, which shows values under the
/// pointer. Pure.
std::string draw_chart(const ChartPlan& plan, const std::vector<double>& resumed_at);

}  // namespace lockstep::inline internal
