#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A scale from values to places, with round numbers to write beside it. Pure.
struct Axis {
  double least = 0;
  double most = 1;
  bool is_log = false;
  std::vector<double> ticks = {};

  /// 0 to 1.
  double place(double value) const;
};

/// Holds both; by powers of ten where `may_be_log`, all is above 0 and there are more than two of
/// them.
Axis make_axis(double least, double most, int most_ticks, bool may_be_log = false);

/// "12000" as "12k", "0.00025" as "2.5e-4": four digits at most.
std::string short_number(double value);

}  // namespace lockstep::inline internal
