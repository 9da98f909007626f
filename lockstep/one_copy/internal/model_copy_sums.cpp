// Gradients that are sums which all ranks have, as those over logical shards.
#include <cstring>

#include <ATen/ops/empty_like.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/hash.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {

void ModelCopy::check_sum(const char* call, std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  const at::Tensor& view = views_[index];
  if (!gradient.defined()) return;
  if (gradient.layout() == at::kStrided && gradient.is_cpu() &&
      gradient.scalar_type() == view.scalar_type() && gradient.sizes() == view.sizes()) {
    return;
  }
  throw UsageError(concat(call, name_, " on rank ", group_.rank(), ": the gradient of '",
                          names_[index],
                          "' is not dense, or of another shape, dtype or device than the "
                          "parameter; leave it as the sum over logical shards"));
}

void ModelCopy::note_sum(std::size_t index) {
  held_[index] = {.is_sum = true};
  const at::Tensor& gradient = parameters_[index].grad();
  if (!gradient.defined()) return;
  held_[index].version = gradient._version();
  held_[index].sum = gradient.const_data_ptr();
}

// As the parameter lies in memory.
void ModelCopy::find_sum(std::size_t index) {
  const at::Tensor& gradient = parameters_[index].grad();
  const at::Tensor& view = views_[index];
  Held& held = held_[index];
  held.gradient = gradient;
  held.made = 0;
  if (!gradient.defined()) return;
  if (gradient.strides() != view.strides() || gradient.is_neg()) {
    held.gradient = at::empty_like(view);
    held.gradient.copy_(gradient);
  }
  // Clipped, for example.
  const bool is_changed =
      gradient._version() != held.version || gradient.const_data_ptr() != held.sum;
  if (is_changed) held.made = hash_of(held.gradient.const_data_ptr(), held.gradient.nbytes());
}

void ModelCopy::copy_sum(std::size_t index, std::int64_t begin, std::int64_t elements,
                         std::byte* target) const {
  const std::int64_t bytes = element_bytes_of(index);
  std::memcpy(target,
              static_cast<const std::byte*>(held_[index].gradient.const_data_ptr()) + begin * bytes,
              static_cast<std::size_t>(elements * bytes));
}

}  // namespace lockstep::inline internal
