#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// What goes from a stage to the next, or back to the one before.
struct StageMessage {
  enum class Kind { kActivations, kGradients };
  Kind kind = Kind::kActivations;
  int target_stage = 0;
  int micro_batch = 0;

  int source_stage() const {
    return kind == Kind::kActivations ? target_stage - 1 : target_stage + 1;
  }
};

struct StageTensor {
  at::Tensor tensor;           ///< Undefined in place of gradients that there are none of.
  bool requires_grad = false;  ///< Whether a gradient is expected back.
};

/// How stages reach each other. Messages of one kind to one stage are received as they were sent.
class StageLink {
 public:
  StageLink() = default;
  virtual ~StageLink() = default;
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  /// Returns before the message is received. `tensor`: undefined, or contiguous and not changed any
  /// more.
  virtual void send(const StageMessage& message, const StageTensor& sent) = 0;
  /// Waits for it.
  virtual StageTensor receive(const StageMessage& message) = 0;
};

}  // namespace lockstep::inline internal
