#include "lockstep/optim/clip_grad.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/each_once.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep {
namespace {

// PyTorch's: keeps the division from overflowing where all gradients are zero.
constexpr double kNormEpsilon = 1e-6;

using GradientList = std::vector<at::Tensor>;

/// What there is to scale.
struct Gradients {
  GradientList tensors = {};  ///< Of a sparse gradient its values, each of an element of its own.
  CopyPlaces shared;          ///< Those of one copy per machine.
};

Gradients gradients_of(const GradientList& parameters) {
  Gradients all{.shared = CopyPlaces::of_own_gradients(parameters)};
  GradientList& gradients = all.tensors;
  for (const at::Tensor& parameter : with_separate_gradients(all.shared.ordinary)) {
    if (parameter.grad().is_sparse()) {
      parameter.mutable_grad() = parameter.grad().coalesce();
      gradients.push_back(parameter.grad()._values());
    } else {
      gradients.push_back(parameter.grad());
    }
  }
  return all;
}

// By device and dtype: the kernels for many tensors at a time want them alike.
std::vector<GradientList> alike(const GradientList& gradients) {
  std::vector<GradientList> groups;
  for (const at::Tensor& gradient : gradients) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const GradientList& other) {
      return other[0].device() == gradient.device() &&
             other[0].scalar_type() == gradient.scalar_type();
    });
    if (group == groups.end()) {
      groups.push_back({gradient});
    } else {
      group->push_back(gradient);
    }
  }
  return groups;
}

at::Tensor local_norm(GradientList gradients, double norm_type) {
  if (std::isinf(norm_type)) {  // Without elements there is no largest one.
    std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  }
  if (gradients.empty()) return at::scalar_tensor(0.0);
  std::vector<at::Tensor> norms;
  for (const GradientList& group : alike(gradients)) {
    for (const at::Tensor& norm : at::_foreach_norm(group, norm_type)) {
      norms.push_back(norm.to(gradients[0].device()));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

// The norm over all ranks of what each has, in float64.
at::Tensor norm_over_ranks(const at::Tensor& local, double norm_type, const ProcessGroup& group) {
  const double value = local.item().toDouble();
  const bool is_largest = std::isinf(norm_type);
  const bool is_count = norm_type == 0;
  const double part = is_largest || is_count ? value : std::pow(value, norm_type);
  const at::Tensor all =
      at::full({1}, part, at::TensorOptions().dtype(at::kDouble).device(group.device()));
  group.all_reduce(all, {.op = is_largest ? ReduceOp::kMax : ReduceOp::kSum});
  const double sum = all.item().toDouble();
  return at::scalar_tensor(is_largest || is_count ? sum : std::pow(sum, 1 / norm_type),
                           at::kDouble);
}

at::Tensor norm_of_first(const at::Tensor& own, const ProcessGroup& group) {
  const at::Tensor norm = at::full({1}, own.item().toDouble(),
                                   at::TensorOptions().dtype(at::kDouble).device(group.device()));
  group.broadcast(norm, 0);
  return at::scalar_tensor(norm.item().toDouble(), at::kDouble);
}

at::Tensor total_norm(const Gradients& gradients, const ClipGradOptions& options) {
  if (!(options.norm_type >= 0)) {
    throw UsageError(concat("clip gradients: norm_type=", options.norm_type,
                            " is no norm; use 2, 1, infinity or another positive number"));
  }
  at::Tensor norm = local_norm(gradients.tensors, options.norm_type);
  if (!gradients.shared.copies.empty()) {
    if (options.norm_type != 2 || options.process_group) {
      throw UsageError(concat("clip gradients: with one_copy_per_machine norm_type must be 2, not ",
                              options.norm_type, ", and process_group empty"));
    }
    const double own = norm.item().toDouble();
    // As a norm of float32 tensors.
    norm = at::scalar_tensor(std::sqrt(own * own + gradients.shared.average_in_place().current));
  }
  if (options.process_group && options.process_group.world_size() > 1) {
    norm = norm_over_ranks(norm, options.norm_type, options.process_group);
  }
  if (options.replicate_group && options.replicate_group.world_size() > 1) {
    norm = norm_of_first(norm, options.replicate_group);
  }
  const double value = norm.item().toDouble();
  if (options.error_if_nonfinite && !std::isfinite(value)) {
    throw Error(concat("clip gradients: their norm of order ", options.norm_type, " is ", value,
                       "; look for the step in which the loss became infinite or no number, or "
                       "leave error_if_nonfinite unset"));
  }
  return norm;
}

void scale(const Gradients& gradients, double max_norm, const at::Tensor& norm) {
  if (!(max_norm >= 0)) {
    throw UsageError(concat("clip gradients: max_norm=", max_norm,
                            " is not a norm; it must be 0 "
                            "or more"));
  }
  // In PyTorch's order: the reciprocal is rounded before it is multiplied.
  const at::Tensor coefficient = norm.add(kNormEpsilon).reciprocal().mul(max_norm).clamp_max(1.0);
  if (coefficient.item().toDouble() == 1.0) return;
  gradients.shared.scale_averages(coefficient.item().toFloat());
  for (const GradientList& group : alike(gradients.tensors)) {
    at::_foreach_mul_(group, coefficient.to(group[0].device()));
  }
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipGradOptions& options) {
  const c10::NoGradGuard no_grad;
  const Gradients gradients = gradients_of(parameters);
  const at::Tensor norm = total_norm(gradients, options);
  scale(gradients, max_norm, norm);
  return norm.item().toDouble();
}

void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double total_norm) {
  const c10::NoGradGuard no_grad;
  const Gradients gradients = gradients_of(parameters);
  if (!gradients.shared.copies.empty()) gradients.shared.average_in_place();
  scale(gradients, max_norm, at::scalar_tensor(total_norm, at::kDouble));
}

double get_total_norm(const std::vector<at::Tensor>& parameters, const ClipGradOptions& options) {
  const c10::NoGradGuard no_grad;
  return total_norm(gradients_of(parameters), options).item().toDouble();
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!(clip_value >= 0)) {
    throw UsageError(concat("clip gradients: clip_value=", clip_value,
                            " leaves no interval; it must be 0 or more"));
  }
  const c10::NoGradGuard no_grad;
  Gradients gradients = gradients_of(parameters);
  if (!gradients.shared.copies.empty()) {
    gradients.shared.average_in_place();
    gradients.shared.clamp_averages(clip_value);
  }
  for (at::Tensor& gradient : gradients.tensors) gradient.clamp_(-clip_value, clip_value);
}

}  // namespace lockstep
