#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/flat_gradients.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradients of some parameters in one flat tensor, followed by one flag a parameter, which
/// is 0 where no rank has a gradient for it. The flags travel with the sum, so that telling an
/// unused parameter from a zero gradient costs no message of its own. Each .grad becomes a view of
/// the tensor.
/// Where the group shares memory the tensor lies in it and the average is formed in place.
/// Elsewhere gradients are divided as they are copied, then summed. Gradients that travel in
/// another dtype are converted as they are copied, to a tensor of their own, from which the average
/// comes back: where the group shares memory in the pass that averages, in float32, rounded no
/// more; elsewhere summed in the dtype they travel in.
class GradientBucket final : public GradientExchange {
 public:
  /// `parameters` share dtype and device.
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
  at::Tensor sent_;  ///< flat_, or what travels in its place
  at::Tensor flags_;
  at::Tensor mark_;  ///< a flag that is set
  at::Tensor sum_of_squares_;
  std::vector<FlatGradients> views_;  ///< of flat_; where it is another tensor, of sent_, too
  std::vector<bool> has_gradient_;
  std::vector<bool> is_marked_;  ///< in flags_, where that is on a device
  std::vector<Work> works_;
};

}  // namespace lockstep::inline internal
