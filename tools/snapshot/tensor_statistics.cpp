#include "tools/snapshot/tensor_statistics.h"

#include <cstring>

#include <ATen/ATen.h>

namespace lockstep::inline internal {
namespace {

at::Tensor as_doubles(const at::Tensor& tensor) {
  return tensor.is_complex() ? tensor.to(at::kComplexDouble).abs() : tensor.to(at::kDouble);
}

bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

TensorStatistics statistics_of(const at::Tensor& tensor) {
  TensorStatistics result;
  const at::Tensor all = as_doubles(tensor).flatten();
  const at::Tensor finite = all.masked_select(at::isfinite(all));
  result.non_finite = all.numel() - finite.numel();
  if (finite.numel() == 0) return result;
  result.mean = finite.mean().item().toDouble();
  result.std = finite.std(/*unbiased=*/false).item().toDouble();
  result.norm = finite.norm().item().toDouble();
  return result;
}

TensorDifference difference_of(const at::Tensor& a, const at::Tensor& b) {
  TensorDifference result;
  result.identical = have_same_bits(a, b);
  if (result.identical || a.numel() == 0) return result;
  const bool is_complex = a.is_complex() || b.is_complex();
  const at::ScalarType wide = is_complex ? at::kComplexDouble : at::kDouble;
  const at::Tensor x = a.to(wide).flatten();
  const at::Tensor y = b.to(wide).flatten();
  const at::Tensor both = at::isfinite(x).logical_and(at::isfinite(y));
  // One that is no number equals itself here: it is the same trouble on both sides.
  const at::Tensor same = x.eq(y).logical_or(at::isnan(x).logical_and(at::isnan(y)));
  result.non_finite = both.logical_not().logical_and(same.logical_not()).sum().item().toLong();
  const at::Tensor difference = (x - y).abs().masked_select(both);
  if (difference.numel() == 0) return result;
  const at::Tensor magnitude = at::maximum(x.abs(), y.abs()).masked_select(both);
  result.max_absolute = difference.max().item().toDouble();
  const at::Tensor relative =
      at::where(magnitude > 0, difference / magnitude, at::zeros_like(difference));
  result.max_relative = relative.max().item().toDouble();
  return result;
}

}  // namespace lockstep::inline internal
