#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/fuzz/differential/plan.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::differential {

/// What the training and its oracle have in common: operators of LibTorch, nothing of Lockstep.

/// Gradients are clipped to this.
inline constexpr double kMaxNorm = 3;

/// One replica.
struct Model {
  std::vector<at::Tensor> parameters;
  at::Tensor buffer;  ///< [kWidth]
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor batches_tracked;

  std::vector<at::Tensor> buffers() const;
};

/// As a rank has it before the module is wrapped.
at::Tensor make_parameter(const Plan& plan, int index, int rank);
Model make_model(const Plan& plan, int rank);

/// Where a pass is.
struct Place {
  int step = 0;
  int pass = 0;
  int rank = 0;
  int forward = 0;
};

/// Small integers; [samples, kWidth].
at::Tensor make_input(const Plan& plan, const Place& place);

/// Keeps values small, and integers integers; its gradient is that of the identity where the plan's
/// numbers are integers.
at::Tensor bound(const Plan& plan, const at::Tensor& value);

/// One use of an operator, other than kBatchNorm. `first`: the first operator's result.
at::Tensor apply_op(const Plan& plan, const OpPlan& op, const Model& model, const at::Tensor& value,
                    const at::Tensor& first, const at::Tensor& input);
/// The last value and an operator's result.
at::Tensor combine(const Plan& plan, const OpPlan& op, const at::Tensor& last,
                   const at::Tensor& result);
/// In training mode, before the operator that reads it.
void change_buffer(const Plan& plan, const at::Tensor& buffer, const at::Tensor& input);

/// Without a graph, and real: complex numbers are their two parts.
at::Tensor dense(const at::Tensor& tensor);
/// Whether every value is an integer.
bool is_whole(const at::Tensor& tensor);

/// Of one forward pass.
at::Tensor make_loss(const Plan& plan, const Place& place, const Model& model,
                     const at::Tensor& input, const at::Tensor& output);
at::Tensor make_loss_that_reaches_nothing(const at::Tensor& input);

std::vector<at::Tensor> trained(const Plan& plan, const Model& model);

/// What the program does to its parameters after a step: small integers again.
void round_parameters(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::differential
