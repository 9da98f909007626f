#pragma once

#include <functional>
#include <optional>
#include <utility>

namespace lockstep::inline internal {

/// What the average of gradients over ranks is multiplied by: 1, or, where ranks weigh their
/// gradients, what the ranks find out together while backward runs. Either all of it is of_average,
/// the same on every rank, or, where each rank's gradients are yet to get their weight, of_own.
/// Threads: one at a time.
class GradientScale {
 public:
  GradientScale() = default;
  /// `find` waits for what is the same on every rank; it is called once, when that is first needed.
  /// `unit`: what it is multiplied by to be this rank's own; unset where it is the average's.
  GradientScale(std::function<double()> find, std::optional<double> unit)
      : find_(std::move(find)), unit_(unit) {}

  /// Of this rank's gradients, before they are averaged; waits only where it is not 1.
  double of_own() { return unit_ ? *unit_ * found() : 1; }
  /// Of the average.
  double of_average() { return unit_ ? 1 : found(); }
  /// Both.
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
