#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/gradient_exchange.h"

namespace lockstep {

/// The gradients of some parameters in one flat tensor, followed by one flag a parameter: how many
/// ranks have a gradient for it. The flags travel with the sum, so that telling an unused parameter
/// from a zero gradient costs no message of its own. Each .grad becomes a view of the tensor.
/// Where the group shares memory the tensor lies in it and the average is formed in place.
/// Elsewhere gradients are divided as they are copied, then summed.
class GradientBucket final : public GradientExchange {
 public:
  /// `parameters` share dtype and device.
  GradientBucket(const ProcessGroup& group, std::vector<std::size_t> indices,
                 std::vector<at::Tensor> parameters);

  void fill(std::size_t position) override;
  void start_average() override;
  void finish() override;

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;  ///< the parameter's part of the bucket, in its shape and strides
    bool has_gradient = false;
  };
  void set_flag(std::size_t position, bool flag);

  ProcessGroup group_;
  double scale_;  ///< of gradients as they are copied
  std::vector<Slot> slots_;
  at::Tensor flat_;
  at::Tensor flags_;
  at::Tensor one_;  ///< of the bucket's dtype, on the CPU
  Work work_;
};

}  // namespace lockstep
