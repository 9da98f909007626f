#pragma once

#include <cstdint>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace lockstep::inline internal {

/// Marks the backward passes that the calling thread runs while it lives as those of a loss with a
/// weight: seen on every thread that autograd uses for them.
class WeightedPass {
 public:
  struct Facts {
    double weight;
    bool is_in_loss;           ///< all of it is applied to the gradient of the loss
    std::uint64_t number = 0;  ///< of this pass among all
  };

  /// `facts` without a number.
  explicit WeightedPass(const Facts& facts);

  /// Of the pass that the calling thread works on; null where it has no weight.
  static const Facts* current();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace lockstep::inline internal
