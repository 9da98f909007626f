#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/recovery/internal/tensor_copies.h"
#include "lockstep/recovery/training_parts.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// Source of a state that does not fit, for errors.
inline constexpr const char* kOtherRank = "the state of another rank";

/// Sets the scheduler back by `steps` steps; learning rates stay.
void take_back_steps(torch::optim::LRScheduler& scheduler, std::int64_t steps);

/// The state of a training run between two steps, kept so that a step can be rolled back half-way.
/// Tensors that steps change early (buffers and the program's own) are copied (above 16 MiB only if
/// changed). Parameters and optimizer change together at the end of a step and are only watched
/// (recovery/internal/update_mark.h). Gradients are not kept, only whether they are defined: an
/// optimizer skips a parameter whose gradient is undefined, and updates it by its moments if the
/// gradient is zeros, as zero_grad(false) leaves it.
class TrainingState {
 public:
  explicit TrainingState(TrainingParts parts);

  /// Records the state to roll back to. Call it between two steps.
  void remember();
  /// Rolls back to it; gradients that were defined are zeros. Returns false if parameters have
  /// changed since and belong to no recorded step.
  bool roll_back();
  /// Leaves the one copy per machine, so that no rank waits for this one.
  void leave_copies();

  /// Hash of the parameters; if it differs between ranks, they are no longer replicas.
  std::uint64_t parameters_hash() const;

  /// The state in a form that files can hold; shares memory with the parts on the CPU.
  c10::IValue value() const;
  /// Replaces the parts' values; defined gradients become zeros. `steps`: number of steps that the
  /// scheduler is behind; negative: ahead.
  /// Errors: UsageError if they are of another model or optimizer, or of other `extra` tensors,
  /// which are then unchanged.
  void take(const c10::IValue& value, std::int64_t steps);

  /// Errors: UsageError if the program's own tensors have other names, shapes or dtypes.
  void check_extra(const TensorDict& saved) const;

  const TrainingParts& parts() const { return parts_; }
  std::vector<at::Tensor> parameters() const;

 private:
  struct Watched {
    at::Tensor parameter;
    /// Its parameter group in the optimizer.
    std::optional<std::size_t> group{};
    std::uint64_t mark = 0;
    std::int64_t gradient = kNoGradient;
  };
  std::uint64_t mark_of(const Watched& watched) const;

  TrainingParts parts_;
  std::vector<Watched> parameters_;
  TensorCopies copies_;
  bool is_torn_ = false;  ///< The copy that was left last was inconsistent.
};

}  // namespace lockstep::inline internal
