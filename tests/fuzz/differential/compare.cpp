#include <algorithm>
#include <cmath>
#include <sstream>

#include <ATen/ATen.h>

#include "tests/fuzz/differential/failure.h"
#include "tests/fuzz/differential/graph.h"
#include "tests/fuzz/differential/oracle.h"

namespace lockstep::differential {
namespace {

// Half a unit in the last place of 1.
double unit_of(at::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kHalf:
      return std::ldexp(1.0, -11);
    case at::kBFloat16:
      return std::ldexp(1.0, -8);
    case at::kFloat:
      return std::ldexp(1.0, -24);
    default:
      return std::ldexp(1.0, -53);
  }
}

// Of NaN too, whatever its sign.
bool are_equal(const at::Tensor& left, const at::Tensor& right) {
  return at::equal(left, right) || at::allclose(left, right, 0, 0, /*equal_nan=*/true);
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : dense(tensor).abs().max().item<double>();
}

double largest_finite(const at::Tensor& tensor) {
  return largest(dense(tensor).masked_fill(at::isfinite(dense(tensor)).logical_not(), 0));
}

std::string text_of(const at::Tensor& tensor) {
  const at::Tensor values = dense(tensor).flatten().slice(0, 0, 8).to(at::kDouble);
  std::ostringstream text;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    text << (i > 0 ? " " : "[") << values[i].item<double>();
  }
  text << "]";
  return text.str();
}

// Gradients of double come from float where the graph has both.
double unit_of(const Plan& plan, const at::Tensor& parameter) {
  const bool has_float = std::ranges::any_of(plan.parameters, [](const ParameterPlan& each) {
    return c10::toRealValueType(each.dtype) != at::kDouble;
  });
  return std::max(unit_of(parameter.scalar_type()), has_float ? unit_of(at::kFloat) : 0);
}

double travelling_unit(const Plan& plan, const at::Tensor& parameter) {
  double unit = unit_of(plan, parameter);
  if (plan.options.exchange_dtype && parameter.scalar_type() == at::kFloat) {
    unit = std::max(unit, unit_of(*plan.options.exchange_dtype));
  }
  if (parameter.is_complex()) return unit;  // As they are, by hooks too.
  if (plan.options.hook == HookPlan::kHalf) unit = std::max(unit, unit_of(at::kHalf));
  if (plan.options.hook == HookPlan::kBFloat16) unit = std::max(unit, unit_of(at::kBFloat16));
  return unit;
}

// How far an element may be off; 0: not at all.
double allowed(const Plan& plan, const Oracle& oracle, std::size_t index, bool is_average,
               const at::Tensor& expected) {
  const double own_unit = unit_of(plan, expected);
  const double normalized = plan.has(OpKind::kBatchNorm) || plan.double_backward ? 1e7 : 1;
  const at::Tensor& magnitude = oracle.magnitudes()[index];
  if (!is_average || !magnitude.defined()) {
    const double most = largest_finite(expected);
    return is_whole(expected) && most * own_unit < 0.25 && normalized == 1
               ? 0
               : 16 * own_unit * most * normalized + (normalized > 1 ? 1e-6 : 0);
  }
  const double unit = travelling_unit(plan, expected);
  const double sum = largest_finite(magnitude);
  const bool rounds = plan.options.hook == HookPlan::kQuantize;
  const bool is_exact = oracle.is_exact(index) && is_whole(expected * 8);
  if (is_exact && sum * unit < 0.03 && !rounds) return 0;
  double bound = (plan.ranks + 6) * unit * sum * normalized + (normalized > 1 ? 1e-6 : 0);
  if (rounds) {
    // A step is 1/255 of the range of a bucket, which may hold all parameters.
    double most = 0;
    for (const at::Tensor& other : oracle.magnitudes()) {
      if (other.defined()) most = std::max(most, largest_finite(other));
    }
    bound += most * 2 / 255;
  }
  return bound;
}

}  // namespace

void compare_gradients(const Plan& plan, Oracle& oracle, int rank, bool is_average,
                       const std::vector<at::Tensor>& gradients, const std::string& where,
                       Failure& failure) {
  const auto fail = [&](std::size_t index, const std::string& what) {
    if (failure) return;
    failure = {where, "gradient of p" + std::to_string(index) + " " + what};
  };
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& actual = gradients[i];
    const at::Tensor expected = oracle.gradients(rank)[i];
    if (actual.defined() != expected.defined()) {
      fail(i, actual.defined() ? "is there, where no rank has one" : "is missing");
      continue;
    }
    if (!actual.defined()) continue;
    if (are_equal(dense(actual), dense(expected))) continue;
    at::Tensor difference = (dense(actual).to(at::kDouble) - dense(expected).to(at::kDouble)).abs();
    const double bound = allowed(plan, oracle, i, is_average, expected);
    const at::Tensor& sum = oracle.magnitudes()[i];
    const bool is_half = expected.scalar_type() == at::kHalf ||
                         travelling_unit(plan, expected) == unit_of(at::kHalf);
    const bool overflows =
        is_half && !(largest(is_average && sum.defined() ? sum : expected) <= 3e4);
    if (overflows) difference.masked_fill_(at::isfinite(dense(actual)).logical_not(), 0);
    const double most = difference.max().item<double>();
    if (!(most <= bound)) {
      std::ostringstream text;
      text << "is off by " << most << ", allowed " << bound << "; is " << text_of(actual)
           << ", must be " << text_of(expected);
      fail(i, text.str());
    }
    oracle.adopt(rank, i, actual.is_sparse() ? actual.detach().to_dense() : actual.detach(),
                 is_average);
  }
}

void compare_tensors(const char* what, const std::vector<at::Tensor>& actual,
                     const std::vector<at::Tensor>& expected, double tolerance,
                     const std::string& where, Failure& failure) {
  for (std::size_t i = 0; i < actual.size() && !failure; ++i) {
    const at::Tensor is = dense(actual[i]);
    const at::Tensor must_be = dense(expected[i]);
    if (are_equal(is, must_be)) continue;
    if (tolerance > 0 && at::allclose(is, must_be, tolerance, tolerance)) continue;
    std::ostringstream text;
    text << what << " " << i << " is " << text_of(is) << ", must be " << text_of(must_be);
    failure = {where, text.str()};
  }
}

void compare_norms(const char* what, double actual, double expected, double tolerance,
                   const std::string& where, Failure& failure) {
  if (failure || actual == expected || (std::isnan(actual) && std::isnan(expected))) return;
  if (std::abs(actual - expected) <= tolerance * std::abs(expected) + 1e-12) return;
  std::ostringstream text;
  text << what << " is " << actual << ", must be " << expected;
  failure = {where, text.str()};
}

}  // namespace lockstep::differential
