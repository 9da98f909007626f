#pragma once

#include <functional>

namespace lockstep {

/// What the average of gradients over ranks is multiplied by: 1, or, where ranks weigh their
/// gradients, what the ranks find out together while backward runs.
/// Threads: one at a time.
class GradientScale {
 public:
  GradientScale() = default;
  /// `find` waits for it; it is called once, when the scale is first needed.
  explicit GradientScale(std::function<double()> find) : find_(std::move(find)) {}

  double get() {
    if (find_) {
      scale_ = find_();
      find_ = nullptr;
    }
    return scale_;
  }

 private:
  std::function<double()> find_;
  double scale_ = 1;
};

}  // namespace lockstep
