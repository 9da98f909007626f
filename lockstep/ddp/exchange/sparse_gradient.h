#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradient of a parameter of which a step uses few rows, as an embedding with sparse(true): a
/// sparse COO tensor. The ranks' entries are gathered, padded to the maximum number of entries of a
/// rank, and summed in rank order; .grad becomes the coalesced average.
class SparseGradient final : public GradientExchange {
 public:
  SparseGradient(const ProcessGroup& group, const ExchangeOptions& options, std::size_t index,
                 at::Tensor parameter);

  void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) override;
  void start_average(GradientScale& scale) override;
  void finish() override;

 private:
  ProcessGroup group_;
  at::Tensor parameter_;
  at::Tensor sum_of_squares_;
  at::Tensor own_;  ///< coalesced; undefined if this rank has none
  double factor_ = 1;
  at::Tensor counts_;  ///< number of entries of each rank; -1: no gradient
  Work counted_;
};

}  // namespace lockstep::inline internal
