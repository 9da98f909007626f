#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

/// The gradients of some parameters in one flat tensor, followed by one flag a parameter: how many
/// ranks have a gradient for it. The flags travel with the sum, so that telling an unused parameter
/// from a zero gradient costs no message of its own.
/// Where the group shares memory the bucket lies in it and the average is formed in place; a single
/// large gradient is then not copied first: only the parts that peers reduce are, chunk by chunk,
/// while they are in the cache. Elsewhere gradients are divided as they are copied, then summed.
/// Threads: one at a time.
class GradientBucket {
 public:
  /// `parameters` share dtype and device.
  GradientBucket(const ProcessGroup& group, std::vector<std::size_t> indices,
                 std::vector<at::Tensor> parameters);

  const std::vector<std::size_t>& indices() const { return indices_; }
  std::size_t size() const { return indices_.size(); }

  /// Takes the parameter's gradient, or zeros when it has none.
  void fill(std::size_t position);

  void start_average();

  /// Waits for the average and makes it the gradient of each parameter that any rank has one for.
  void finish();

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;  ///< the parameter's part of the bucket, in its shape and strides
    bool has_gradient = false;
  };
  void set_flag(std::size_t position, bool flag);
  void exchange(const at::Tensor& output, const at::Tensor& input);

  ProcessGroup group_;
  double scale_;  ///< of gradients as they are copied
  std::vector<std::size_t> indices_;
  std::vector<Slot> slots_;
  at::Tensor flat_;
  at::Tensor flags_;
  at::Tensor one_;                  ///< of the bucket's dtype, on the CPU
  std::vector<at::Tensor> chunks_;  ///< of a bucket that does not copy its gradient first
  at::Tensor uncopied_;             ///< that gradient
  std::vector<Work> works_;
};

}  // namespace lockstep
