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
/// Elsewhere gradients are divided as they are copied, then summed. Gradients that travel in
/// another dtype are converted as they are copied, to a tensor of their own, from which the average
/// comes back: where the group shares memory in the pass that averages, in float32, rounded no
/// more; elsewhere summed in the dtype they travel in.
class GradientBucket final : public GradientExchange {
 public:
  /// `parameters` share dtype and device.
  GradientBucket(const ProcessGroup& group, const ExchangeOptions& options,
                 std::vector<std::size_t> indices, std::vector<at::Tensor> parameters);

  void fill(std::size_t position) override;
  void start_average() override;
  void finish() override;

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;  ///< the parameter's part of flat_, in its shape and strides
    at::Tensor sent;  ///< that of sent_
    bool has_gradient = false;
  };
  void set_flag(std::size_t position, bool flag);
  void exchange(const at::Tensor& output, const at::Tensor& input, const at::Tensor& squares);
  void add_own_share_of_squares();

  ProcessGroup group_;
  bool shares_memory_;
  double scale_;  ///< of gradients as they are copied
  std::int64_t elements_ = 0;
  at::Tensor sum_of_squares_;
  std::vector<Slot> slots_;
  at::Tensor flat_;
  at::Tensor sent_;   ///< flat_ itself, unless gradients travel in another dtype
  at::Tensor flags_;  ///< of sent_
  at::Tensor one_;    ///< of the dtype of sent_, on the CPU
  std::vector<Work> works_;
};

}  // namespace lockstep
