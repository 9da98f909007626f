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

/// Where a state comes from that does not fit, for errors.
inline constexpr const char* kOtherRank = "the state of another rank";

/// As if it had made so many steps fewer; learning rates stay.
void take_back_steps(torch::optim::LRScheduler& scheduler, std::int64_t steps);

/// The state of a training between two steps, kept such that a step can be given up half-way.
/// What steps change early, buffers and the program's own tensors, is copied (above 16 MiB where
/// LibTorch counts that it was changed); parameters and optimizer, which change at a step's end all
/// at once, are only watched (recovery/internal/update_mark.h). Gradients are not kept, but whether
/// they are defined is: an optimizer passes over a parameter whose gradient is undefined, and moves
/// it by its moments if the gradient is zeros, as zero_grad(false) leaves it.
class TrainingState {
 public:
  explicit TrainingState(TrainingParts parts);

  /// To be called between two steps: what a step given up goes back to.
  void remember();
  /// Goes back there; gradients that were defined are zeros. False when parameters have been
  /// changed since, and are of no step.
  bool go_back();
  /// Leaves the one copy per machine, so that no rank waits for this one.
  void leave_copies();

  /// Of the parameters: where it differs between ranks they are no replicas any more.
  std::uint64_t parameters_hash() const;

  /// As files can hold it; shares memory with the parts on the CPU.
  c10::IValue value() const;
  /// Replaces the parts' values; gradients that are defined there are zeros. `steps`: how many
  /// steps the scheduler is behind; less than 0: by how many it is ahead.
  /// Errors: UsageError when they are of another model or optimizer, or of other `extra` tensors,
  /// with these as they were.
  void take(const c10::IValue& value, std::int64_t steps);

  /// Errors: UsageError where the program's own tensors have other names, shapes or dtypes.
  void check_extra(const TensorDict& saved) const;

  const TrainingParts& parts() const { return parts_; }
  std::vector<at::Tensor> parameters() const;

 private:
  struct Watched {
    at::Tensor parameter;
    /// Of the optimizer's.
    std::optional<std::size_t> group{};
    std::uint64_t mark = 0;
    std::int64_t gradient = kNoGradient;
  };
  std::uint64_t mark_of(const Watched& watched) const;

  TrainingParts parts_;
  std::vector<Watched> parameters_;
  TensorCopies copies_;
  bool is_torn_ = false;  ///< The copy that was left last.
};

}  // namespace lockstep::inline internal
