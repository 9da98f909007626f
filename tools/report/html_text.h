#pragma once

#include <string>
#include <string_view>

#include "tools/report/axis.h"

namespace lockstep::inline internal {

/// Escaped for the text of a page and for attributes within quotes. Pure.
std::string html_text(std::string_view text);

/// A number with one decimal: a place in an SVG.
std::string place_text(double value);

/// The rectangle of an SVG between the axes.
struct Plot {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;

  double x(const Axis& across, double value) const { return left + across.place(value) * width; }
  double y(const Axis& up, double value) const { return top + (1 - up.place(value)) * height; }
  double bottom() const { return top + height; }
};

std::string svg_line(std::string_view style, double x1, double y1, double x2, double y2,
                     std::string_view title = "");
/// `anchor`: start, middle, end.
std::string svg_text(std::string_view style, std::string_view anchor, double x, double y,
                     std::string_view text);

/// The ticks of the horizontal axis with their numbers, as grid lines or short marks, and its name.
std::string svg_axis(const Plot& plot, const Axis& across, bool has_grid, std::string_view name);

}  // namespace lockstep::inline internal
