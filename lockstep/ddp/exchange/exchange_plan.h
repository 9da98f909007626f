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

/// Where a parameter's gradient is exchanged: in which exchange (ExchangeSchedule::kNoBucket: in
/// none), and at which position of it.
struct ExchangePlace {
  std::size_t exchange;
  std::size_t position = 0;
};

struct ExchangePlan {
  /// In the order in which they are to start.
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  /// Of each exchange.
  std::vector<BucketKind> kinds;
  /// Of each parameter.
  std::vector<ExchangePlace> places;
};

struct ExchangePlanOptions {
  BucketCaps caps;
  /// Gradients that no rank has are not exchanged.
  bool leave_out_unused = false;
  /// These parameters' gradients follow the exchange with that of parameter `delay_until`.
  std::vector<std::size_t> delayed = {};
  std::size_t delay_until = 0;
};

/// Makes the exchanges of all parameters' gradients: the same on every rank that agrees on `graph`.
ExchangePlan plan_exchanges(const std::vector<at::Tensor>& parameters, const ProcessGroup& group,
                            const ExchangeOptions& exchange, const ObservedGraph& graph,
                            const ExchangePlanOptions& options);

/// Exchanges the gradient of the parameter with this index, which was planned as a strided one, as
/// a sparse one from now on.
void exchange_as_sparse(ExchangePlan& plan, std::size_t index, const at::Tensor& parameter,
                        const ProcessGroup& group, const ExchangeOptions& exchange);

/// What the plan exchanges, for people. `names`: of the parameters.
std::vector<BucketLayout> layout_of(const ExchangePlan& plan,
                                    const std::vector<at::Tensor>& parameters,
                                    const std::vector<std::string>& names,
                                    const ExchangeOptions& exchange);

}  // namespace lockstep::inline internal
