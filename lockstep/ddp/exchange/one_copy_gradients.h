#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/gradient_scale.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {

/// Passes this rank's gradients to the machine's copy of the model. A large gradient that autograd
/// has written to the copy's memory (see GradientMemory) is passed in place; others are copied.
/// Threads: one at a time; an autograd thread while it accumulates gradients.
/// Lifetime: the destructor removes its hooks on autograd.
class OneCopyGradients {
 public:
  OneCopyGradients(const ProcessGroup& group, std::shared_ptr<ModelCopy> copy);
  ~OneCopyGradients();
  OneCopyGradients(const OneCopyGradients&) = delete;
  OneCopyGradients& operator=(const OneCopyGradients&) = delete;

  ModelCopy& copy() const { return *copy_; }

  /// Call it at the end of a backward pass outside no_sync(). With weighted backward it waits for
  /// all ranks.
  /// Errors: UsageError for a sparse gradient; else as Work::wait.
  void hold_all(GradientScale& scale);

 private:
  at::Tensor take(std::size_t index, at::Tensor& gradient, double factor) const;

  ProcessGroup group_;
  std::shared_ptr<ModelCopy> copy_;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  std::vector<Accumulator> accumulators_;  ///< Kept alive: parameters hold them weakly.
  std::vector<at::Tensor> small_;          ///< By parameter; undefined for large ones.
};

}  // namespace lockstep::inline internal
