#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// What the time of a training step goes into.
enum class StepPhase : std::uint8_t {
  kData,       ///< getting a batch
  kForward,    ///< the model's forward
  kBackward,   ///< from the end of forward until autograd is done: the loss, too
  kExchange,   ///< waiting for gradients and buffers that backward did not hide
  kOptimizer,  ///< the optimizer's step
  kOther,      ///< all else
};
inline constexpr std::size_t kStepPhases = 6;

/// "data", "forward", "backward", "exchange", "optimizer", "other".
const char* name_of(StepPhase phase);

}  // namespace lockstep
