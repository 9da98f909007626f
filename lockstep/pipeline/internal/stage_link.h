#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// A message from a stage to the next or the previous one.
struct StageMessage {
  enum class Kind { kActivations, kGradients };
  Kind kind = Kind::kActivations;
  int target_stage = 0;
  int micro_batch = 0;

  int source_stage() const {
    return kind == Kind::kActivations ? target_stage - 1 : target_stage + 1;
  }
};

/// A tensor between stages.
struct StageTensor {
  at::Tensor tensor;           ///< undefined for gradients that do not exist
  bool requires_grad = false;  ///< whether a gradient is sent back
};

/// Transport between stages. Messages of one kind to one stage are received in the order of sends.
class StageLink {
 public:
  StageLink() = default;
  virtual ~StageLink() = default;
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  /// Sends without waiting for the receiver. `sent.tensor`: undefined, or contiguous and no longer
  /// changed.
  virtual void send(const StageMessage& message, const StageTensor& sent) = 0;
  /// Waits for the message.
  virtual StageTensor receive(const StageMessage& message) = 0;
};

}  // namespace lockstep::inline internal
