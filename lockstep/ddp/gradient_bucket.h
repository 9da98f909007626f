#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

/// The gradients of some parameters in one flat tensor, followed by one flag a parameter: how many
/// ranks have a gradient for it. The flags travel with the sum, so that telling an unused parameter
/// from a zero gradient costs no message of its own.
/// Threads: one at a time.
class GradientBucket {
 public:
  /// `parameters` share dtype and device.
  GradientBucket(std::vector<std::size_t> indices, std::vector<at::Tensor> parameters);

  const std::vector<std::size_t>& indices() const { return indices_; }
  std::size_t size() const { return indices_.size(); }

  /// Puts `scale` times the parameter's gradient, zeros when it has none, into the bucket.
  void fill(std::size_t position, double scale);

  void start_sum(const ProcessGroup& group);

  /// Waits for the sum and makes it the gradient of each parameter that any rank has one for.
  void finish();

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;  ///< the parameter's part of the bucket, in its shape and strides
    bool has_gradient = false;
  };
  std::vector<std::size_t> indices_;
  std::vector<Slot> slots_;
  at::Tensor flat_;
  at::Tensor flags_;
  Work sum_;
};

}  // namespace lockstep
