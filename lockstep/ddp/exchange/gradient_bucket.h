#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/flat_gradients.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradients of some parameters in one flat tensor, followed by a flag per parameter, which is
/// 0 if no rank has a gradient for it. The flags are summed with the gradients, so an unused
/// parameter is distinguished from a zero gradient without an extra message. Each .grad becomes a
/// view of the tensor.
/// If the group shares memory, the tensor is in it and averaged in place. Else gradients are
/// divided when copied, then summed. Gradients that are exchanged in another dtype are converted
/// when copied, to a separate tensor. If the group shares memory, the pass that averages converts
/// them back, in float32, without further rounding; else they are summed in the exchanged dtype.
class GradientBucket final : public GradientExchange {
 public:
  /// `parameters`: of one dtype and device.
  GradientBucket(const ProcessGroup& group, const ExchangeOptions& options,
                 std::vector<std::size_t> indices, const std::vector<at::Tensor>& parameters);

  void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) override;
  void start_average(GradientScale& scale) override;
  bool is_averaged() const override;
  void finish() override;
  void leave_out(std::size_t position) override;

 private:
  void set_flag(std::size_t position, bool flag);
  void exchange(const at::Tensor& output, const at::Tensor& input, double scale,
                const at::Tensor& squares);
  void add_own_share_of_squares();

  ProcessGroup group_;
  std::string name_;
  bool shares_memory_;
  bool as_view_;
  std::int64_t elements_ = 0;  ///< of all gradients
  at::Tensor flat_;
  at::Tensor sent_;  ///< the tensor that is exchanged: flat_, or a converted one
  at::Tensor flags_;
  at::Tensor mark_;  ///< a flag that is set
  at::Tensor sum_of_squares_;
  std::vector<FlatGradients> views_;  ///< of flat_, and of sent_ if that is another tensor
  std::vector<bool> has_gradient_;
  std::vector<bool> is_marked_;  ///< in flags_, if that is on a device
  std::vector<Work> works_;
};

}  // namespace lockstep::inline internal
