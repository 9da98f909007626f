#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::differential {

class Oracle;
struct Plan;

/// The first difference of a training run; none so far if `what` is empty.
struct Failure {
  std::string where;
  std::string what;
  explicit operator bool() const { return !what.empty(); }
};

/// Compares a rank's gradients with the oracle's, bit for bit where the oracle's are exact, else
/// within the bound of rounding; the oracle adopts what may differ. `is_average`: after an
/// exchange.
void compare_gradients(const Plan& plan, Oracle& oracle, int rank, bool is_average,
                       const std::vector<at::Tensor>& gradients, const std::string& where,
                       Failure& failure);

/// The same bits, or for what was normalized within rounding.
void compare_tensors(const char* what, const std::vector<at::Tensor>& actual,
                     const std::vector<at::Tensor>& expected, double tolerance,
                     const std::string& where, Failure& failure);

void compare_norms(const char* what, double actual, double expected, double tolerance,
                   const std::string& where, Failure& failure);

}  // namespace lockstep::differential
