#include "lockstep/comm/internal/each_once.h"

#include <cstdint>
#include <map>
#include <unordered_set>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

// The bytes from a tensor's first element to its last.
struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

AddressRange addresses_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  std::int64_t elements = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return {begin, begin + static_cast<std::uintptr_t>(elements) * tensor.element_size()};
}

}  // namespace

std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
  }
  return result;
}

std::vector<at::Tensor> with_separate_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  std::map<std::uintptr_t, std::uintptr_t> taken;  // by their ends the beginnings
  for (at::Tensor& parameter : each_once(parameters)) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_meta()) {
      throw UsageError(
          "the gradient of a parameter has no values, as with one_copy_per_machine, where this "
          "operation is not supported; leave the option out");
    }
    if (gradient.layout() == at::kStrided && gradient.numel() > 0) {
      AddressRange range = addresses_of(gradient);
      const auto next = taken.upper_bound(range.begin);
      if (next != taken.end() && next->second < range.end) {
        gradient = gradient.detach().clone();
        range = addresses_of(gradient);
      }
      taken[range.end] = range.begin;
    }
    result.push_back(parameter);
  }
  return result;
}

}  // namespace lockstep::inline internal
