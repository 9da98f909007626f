#include "tools/report/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace lockstep::inline internal {
namespace {

constexpr double kLargest = 1e300;  // The difference of two is finite.

double round_step(double range, int most_ticks) {
  const double raw = range / most_ticks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

double Axis::place(double value) const {
  return (std::clamp(value, -kLargest, kLargest) - least) / (most - least);
}

Axis make_axis(double least, double most, int most_ticks) {
  least = std::clamp(least, -kLargest, kLargest);
  most = std::clamp(most, -kLargest, kLargest);
  // Closer together they are one value: no tick lies between them.
  const double size = std::max(std::abs(least), std::abs(most));
  if (!(most - least > std::max(size * 1e-12, 1e-290))) {
    const double room = size < 1e-280 ? 1 : size * 0.1;
    least -= room;
    most += room;
  }
  const double step = round_step(most - least, most_ticks);
  Axis axis{.least = std::floor(least / step + 1e-9) * step,
            .most = std::ceil(most / step - 1e-9) * step};
  const auto count = static_cast<int>(std::lround((axis.most - axis.least) / step));
  for (int i = 0; i <= count; ++i) {
    const double tick = axis.least + i * step;
    axis.ticks.push_back(std::abs(tick) < step * 1e-6 ? 0 : tick);
  }
  return axis;
}

Axis make_exact_axis(double least, double most, int most_ticks) {
  Axis axis = make_axis(least, most, most_ticks);
  if (!(most > least)) return axis;
  axis.least = least;
  axis.most = most;
  std::erase_if(axis.ticks, [&](double tick) { return tick < least || tick > most; });
  return axis;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  const char* unit = "";
  if (size < 1e12) {
    for (const auto& [factor, name] : {std::pair(1e9, "G"), {1e6, "M"}, {1e3, "k"}}) {
      if (size < 10 * factor) continue;
      value /= factor;
      unit = name;
      break;
    }
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4g%s", value, unit);
  return text;
}

}  // namespace lockstep::inline internal
