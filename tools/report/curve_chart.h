#pragma once

#include <string>
#include <vector>

#include "tools/report/metric_curves.h"

namespace lockstep::inline internal {

/// Curves that are shown on one pair of axes.
struct ChartPlan {
  std::string title;
  std::string unit;  ///< of the values; may be empty
  std::vector<const Curve*> curves;
};

/// Which curves go together: losses, a metric of training with that of validation, the phases of a
/// step; each other one by itself. Losses first. Pure; refers to `curves`.
std::vector<ChartPlan> plan_charts(const std::vector<Curve>& curves);

/// A legend with the last values, and the chart as inline SVG: axes, curves, a mark where a run
/// resumed, and the points for the page's script, which shows values under the pointer. Pure.
std::string draw_chart(const ChartPlan& plan, const std::vector<double>& resumed_at);

}  // namespace lockstep::inline internal
