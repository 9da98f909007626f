#pragma once

#include <functional>
#include <optional>
#include <utility>

namespace lockstep::inline internal {

/// The factor of averaged gradients: 1, or with weighted backward a value that the ranks compute
/// together while backward runs. Either of_average() has all of it, the same on every rank, or, if
/// each rank's gradients still need their weight, of_own() has it.
/// Threads: one at a time.
class GradientScale {
 public:
  GradientScale() = default;
  /// `find` waits for the factor that is the same on every rank; called once, on first use. `unit`:
  /// multiplied by it, this rank's own factor; unset: the factor applies to the average.
  GradientScale(std::function<double()> find, std::optional<double> unit)
      : find_(std::move(find)), unit_(unit) {}

  /// Factor of this rank's gradients before they are averaged; waits only if it is not 1.
  double of_own() { return unit_ ? *unit_ * found() : 1; }
  /// Factor of the average.
  double of_average() { return unit_ ? 1 : found(); }
  /// The product of both.
  double get() { return of_own() * of_average(); }

 private:
  double found() {
    if (find_) scale_ = std::exchange(find_, nullptr)();
    return scale_;
  }

  std::function<double()> find_;
  std::optional<double> unit_;
  double scale_ = 1;
};

}  // namespace lockstep::inline internal
