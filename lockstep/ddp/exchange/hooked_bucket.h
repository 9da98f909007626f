#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/exchange/flat_gradients.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradients of some parameters in one flat tensor that a CommHook averages. A separate message
/// says which of them any rank has.
class HookedBucket final : public GradientExchange {
 public:
  /// `parameters`: of one dtype and device. `number`: this bucket's.
  HookedBucket(const ProcessGroup& group, const ExchangeOptions& options, std::size_t number,
               std::vector<std::size_t> indices, const std::vector<at::Tensor>& parameters);

  void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) override;
  void start_average(GradientScale& scale) override;
  void finish() override;
  void leave_out(std::size_t position) override;

 private:
  ProcessGroup group_;
  std::shared_ptr<CommHook> hook_;
  bool as_view_;
  at::Tensor sum_of_squares_;
  at::Tensor flat_;
  FlatGradients gradients_;
  HookBucket bucket_;
  std::vector<float> own_holders_;  // of each gradient: 1 if this rank has it
  at::Tensor holders_;              // number of ranks that have it; infinite if sparse on any
  Work counted_;
  std::function<void()> finish_;
};

}  // namespace lockstep::inline internal
