#pragma once

#include <cstdint>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace lockstep::inline internal {

/// Marks the backward passes that the calling thread runs while it lives as those of a loss with a
/// weight, visible on every autograd thread of the pass.
class WeightedPass {
 public:
  struct Facts {
    double weight;
    bool is_in_loss;           ///< the whole weight is applied to the gradient of the loss
    std::uint64_t number = 0;  ///< number of this pass
  };

  /// `facts`: without a number.
  explicit WeightedPass(const Facts& facts);

  /// Facts of the pass that the calling thread works on; null: it has no weight.
  static const Facts* current();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace lockstep::inline internal
