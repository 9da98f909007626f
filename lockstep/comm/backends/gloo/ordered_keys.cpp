#include "lockstep/comm/backends/gloo/ordered_keys.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/backends/flat_work.h"

namespace lockstep::gloo_backend {
namespace {

// What the bits of a number below zero are flipped by, but for its sign: the larger, the smaller.
std::int64_t magnitude_bits(const at::Tensor& integers) {
  return integers.scalar_type() == at::kLong ? std::numeric_limits<std::int64_t>::max()
                                             : std::numeric_limits<std::int32_t>::max();
}

// Its own inverse.
at::Tensor flip_below_zero(const at::Tensor& integers) {
  const auto sign_bit = static_cast<std::int64_t>(8 * integers.element_size() - 1);
  return integers.bitwise_right_shift(sign_bit)
      .bitwise_and_(magnitude_bits(integers))
      .bitwise_xor_(integers);
}

}  // namespace

// Lists of several dtypes are left to Gloo, which refuses them.
bool needs_keys(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op) {
  return (op.op_ == c10d::ReduceOp::MIN || op.op_ == c10d::ReduceOp::MAX) && !tensors.empty() &&
         tensors[0].is_floating_point() &&
         std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
           return tensor.scalar_type() == tensors[0].scalar_type();
         });
}

at::Tensor ordered_keys(const at::Tensor& values, const c10d::ReduceOp& op) {
  const c10::NoGradGuard no_grad;
  const bool is_double = values.scalar_type() == at::kDouble;
  const at::Tensor wide = values.detach().to(is_double ? at::kDouble : at::kFloat).contiguous();
  const at::Tensor keys = flip_below_zero(wide.view(is_double ? at::kLong : at::kInt));
  // Flipped back, either is a NaN again.
  const std::int64_t largest = magnitude_bits(keys);
  return keys.masked_fill(at::isnan(wide), op.op_ == c10d::ReduceOp::MAX ? largest : -largest - 1);
}

std::vector<at::Tensor> ordered_keys(const std::vector<at::Tensor>& values,
                                     const c10d::ReduceOp& op) {
  std::vector<at::Tensor> keys;
  for (const at::Tensor& each : values) keys.push_back(ordered_keys(each, op));
  return keys;
}

c10::intrusive_ptr<c10d::Work> keyed_work(c10::intrusive_ptr<c10d::Work> work,
                                          std::vector<at::Tensor> keys,
                                          std::vector<at::Tensor> outputs) {
  const auto write = [keys = std::move(keys)](const std::vector<at::Tensor>& numbers) {
    // As Gloo itself writes: autograd does not notice.
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const at::ScalarType wide = keys[i].scalar_type() == at::kLong ? at::kDouble : at::kFloat;
      numbers[i].copy_(flip_below_zero(keys[i]).view(wide).view(numbers[i].sizes()));
    }
  };
  return c10::make_intrusive<CopiedWork>(std::move(work), std::move(outputs), write);
}

}  // namespace lockstep::gloo_backend
