#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A linear scale with round numbers as ticks. Pure.
struct Axis {
  double least = 0;
  double most = 1;
  std::vector<double> ticks = {};

  /// From 0 at `least` to 1 at `most`.
  double place(double value) const;
};

/// A scale that holds both numbers, between ticks.
Axis make_axis(double least, double most, int most_ticks);

/// A scale from one number to the other, with the ticks in between.
Axis make_exact_axis(double least, double most, int most_ticks);

/// Four digits at most: "12k" for 12000, "2.5e-05" for 0.000025.
std::string short_number(double value);

}  // namespace lockstep::inline internal
