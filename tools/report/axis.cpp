#include "tools/report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr double kLargest = 1e300;  // Of which differences are numbers, too.

double round_step(double range, int most_ticks) {
  const double raw = range / most_ticks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

Axis make_log_axis(double least, double most, int most_ticks) {
  Axis axis{.least = least, .most = most, .is_log = true};
  const int first = static_cast<int>(std::ceil(std::log10(least) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(most) + 1e-9));
  const int every = std::max(1, (last - first + most_ticks) / most_ticks);
  for (int power = first; power <= last; power += every) axis.ticks.push_back(std::pow(10, power));
  return axis;
}

}  // namespace

double Axis::place(double value) const {
  if (is_log)
    return (std::log10(value) - std::log10(least)) / (std::log10(most) - std::log10(least));
  return (std::clamp(value, -kLargest, kLargest) - least) / (most - least);
}

Axis make_axis(double least, double most, int most_ticks, bool may_be_log) {
  constexpr double kLogFrom = 100;
  least = std::clamp(least, -kLargest, kLargest);
  most = std::clamp(most, -kLargest, kLargest);
  if (may_be_log && least > 0 && most / least > kLogFrom) {
    return make_log_axis(least, most, most_ticks);
  }
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

std::string short_number(double value) {
  constexpr int kDigits = 4;
  const double size = std::abs(value);
  struct Unit {
    double factor;
    const char* name;
  };
  static constexpr std::array<Unit, 3> kUnits = {{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  char text[32];
  if (size >= 1e12 || (size > 0 && size < 1e-3)) {
    std::snprintf(text, sizeof text, "%.*g", kDigits, value);
    // "1e-05" as "1e-5".
    std::string shorter = text;
    const std::size_t zero = shorter.find_last_of("+-");
    if (zero != std::string::npos && zero > 0 && shorter.size() == zero + 3 &&
        shorter[zero + 1] == '0') {
      shorter.erase(zero + 1, 1);
    }
    return shorter;
  }
  for (const Unit& unit : kUnits) {
    if (size < 10 * unit.factor) continue;
    std::snprintf(text, sizeof text, "%.*g", kDigits, value / unit.factor);
    return concat(text, unit.name);
  }
  std::snprintf(text, sizeof text, "%.*g", kDigits, value);
  return text;
}

}  // namespace lockstep::inline internal
