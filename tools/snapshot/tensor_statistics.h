#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Computed in double precision over the finite numbers of a tensor, by magnitude where complex.
struct TensorStatistics {
  double mean = 0;
  double std = 0;  ///< of the population: divided by their count
  double norm = 0;
  std::int64_t non_finite = 0;
};
TensorStatistics statistics_of(const at::Tensor& tensor);

/// How two tensors of one shape differ, where both are finite.
struct TensorDifference {
  bool identical = false;  ///< The same dtype and bits.
  double max_absolute = 0;
  double max_relative = 0;  ///< to the larger magnitude of the two
  /// Where one is finite and the other not, or both are not and differ.
  std::int64_t non_finite = 0;
};
TensorDifference difference_of(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::inline internal
