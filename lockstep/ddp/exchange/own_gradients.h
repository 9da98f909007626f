#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradients of some parameters in a group of one rank: they stay in place, and are multiplied
/// by the scale if it is not 1.
class OwnGradients final : public GradientExchange {
 public:
  OwnGradients(const ExchangeOptions& options, std::vector<std::size_t> indices,
               std::vector<at::Tensor> parameters);

  void fill(std::size_t, GradientScale&, const at::Tensor&) override {}
  void start_average(GradientScale& scale) override { scale_ = scale.get(); }
  bool is_averaged() const override { return true; }
  void finish() override;

 private:
  std::vector<at::Tensor> parameters_;
  at::Tensor sum_of_squares_;
  double scale_ = 1;
};

}  // namespace lockstep::inline internal
