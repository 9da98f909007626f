#include "lockstep/snapshot/internal/tensor_difference.h"

#include <algorithm>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

const at::Tensor* find_tensor(const TensorDict& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &TensorDict::value_type::first);
  return found == tensors.end() ? nullptr : &found->second;
}

std::string kind_of(const at::Tensor& tensor) {
  return concat(tensor.dtype().name(), " ", tensor.sizes());
}

}  // namespace

std::optional<std::string> tensor_difference(const TensorDict& own, const TensorDict& saved) {
  for (const auto& [name, tensor] : own) {
    const at::Tensor* const other = find_tensor(saved, name);
    if (other == nullptr) return concat("'", name, "' was not saved");
    if (other->sizes() == tensor.sizes() && other->scalar_type() == tensor.scalar_type()) continue;
    return concat("'", name, "' was saved as ", kind_of(*other), ", and is ", kind_of(tensor),
                  " here");
  }
  for (const auto& [name, tensor] : saved) {
    if (find_tensor(own, name) == nullptr) return concat("'", name, "' was saved, and is not here");
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal
