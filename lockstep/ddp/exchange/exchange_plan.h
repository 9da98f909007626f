#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/bucket_plan.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"
#include "lockstep/ddp/exchange/graph_agreement.h"
#include "lockstep/ddp/exchange_report.h"

namespace lockstep::inline internal {

/// Where a parameter's gradient is exchanged: in which exchange (ExchangeSchedule::kNoBucket:
/// none), and at which position in it.
struct ExchangePlace {
  std::size_t exchange;
  std::size_t position = 0;
};

/// The exchanges of all parameters' gradients.
struct ExchangePlan {
  /// In the order in which they start.
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  /// By exchange.
  std::vector<BucketKind> kinds;
  /// By parameter.
  std::vector<ExchangePlace> places;
};

/// Options of plan_exchanges().
struct ExchangePlanOptions {
  BucketCaps caps;
  /// Exclude gradients that no rank has.
  bool leave_out_unused = false;
  /// Parameters whose gradients are exchanged after the exchange with the gradient of
  /// `delay_until`.
  std::vector<std::size_t> delayed = {};
  std::size_t delay_until = 0;
};

/// Plans the exchanges: the same on every rank that passes the same `graph`.
ExchangePlan plan_exchanges(const std::vector<at::Tensor>& parameters, const ProcessGroup& group,
                            const ExchangeOptions& exchange, const ObservedGraph& graph,
                            const ExchangePlanOptions& options);

/// From now on exchanges a gradient that was planned as strided as a sparse one.
void exchange_as_sparse(ExchangePlan& plan, std::size_t index, const at::Tensor& parameter,
                        const ProcessGroup& group, const ExchangeOptions& exchange);

/// The exchanges of a plan, for people. `names`: of the parameters.
std::vector<BucketLayout> layout_of(const ExchangePlan& plan,
                                    const std::vector<at::Tensor>& parameters,
                                    const std::vector<std::string>& names,
                                    const ExchangeOptions& exchange);

}  // namespace lockstep::inline internal
