#include "tools/report/html_text.h"

#include <cstdio>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '&') {
      escaped += "&amp;";
    } else if (letter == '<') {
      escaped += "&lt;";
    } else if (letter == '>') {
      escaped += "&gt;";
    } else if (letter == '"') {
      escaped += "&quot;";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string place_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string svg_line(std::string_view style, double x1, double y1, double x2, double y2,
                     std::string_view title) {
  return concat("<line class=\"", style, "\" x1=\"", place_text(x1), "\" y1=\"", place_text(y1),
                "\" x2=\"", place_text(x2), "\" y2=\"", place_text(y2), "\">",
                title.empty() ? "" : concat("<title>", html_text(title), "</title>"), "</line>");
}

std::string svg_text(std::string_view style, std::string_view anchor, double x, double y,
                     std::string_view text) {
  return concat("<text class=\"", style, "\" text-anchor=\"", anchor, "\" x=\"", place_text(x),
                "\" y=\"", place_text(y), "\">", html_text(text), "</text>");
}

std::string svg_axis(const Plot& plot, const Axis& across, bool has_grid, std::string_view name) {
  std::string svg;
  for (const double tick : across.ticks) {
    const double x = plot.x(across, tick);
    svg += has_grid ? svg_line("grid", x, plot.top, x, plot.bottom())
                    : svg_line("axis", x, plot.bottom(), x, plot.bottom() + 4);
    svg += svg_text("tick", "middle", x, plot.bottom() + 18, short_number(tick));
  }
  return svg + svg_line("axis", plot.left, plot.bottom(), plot.left + plot.width, plot.bottom()) +
         svg_text("label", "middle", plot.left + plot.width / 2, plot.bottom() + 36, name);
}

}  // namespace lockstep::inline internal
