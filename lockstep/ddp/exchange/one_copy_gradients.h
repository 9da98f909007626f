#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {

/// Hands this rank's gradients to the one copy of the model. A large one that autograd has written
/// to shared memory (see GradientMemory) is handed over where it lies; others are copied.
/// Threads: one at a time; autograd's while it accumulates gradients.
/// Lifetime: what watches autograd is removed with it.
class OneCopyGradients {
 public:
  OneCopyGradients(const ProcessGroup& group, std::shared_ptr<ModelCopy> copy);
  ~OneCopyGradients();
  OneCopyGradients(const OneCopyGradients&) = delete;
  OneCopyGradients& operator=(const OneCopyGradients&) = delete;

  ModelCopy& copy() const { return *copy_; }

  /// At the end of a backward pass outside of no_sync(). Errors: UsageError for a sparse gradient.
  void hold_all();

 private:
  at::Tensor take(std::size_t index, at::Tensor& gradient) const;

  ProcessGroup group_;
  std::shared_ptr<ModelCopy> copy_;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  std::vector<Accumulator> accumulators_;  ///< Kept alive: parameters hold them weakly.
  std::vector<at::Tensor> small_;          ///< By parameter; undefined for large ones.
};

}  // namespace lockstep::inline internal
