#include "lockstep/comm/each_once.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_set>

#include <ATen/ops/zeros.h>

namespace lockstep {
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

bool have_memory_in_common(const at::Tensor& left, const at::Tensor& right) {
  if (left.numel() == 0 || right.numel() == 0) return false;
  const AddressRange of_left = addresses_of(left);
  const AddressRange of_right = addresses_of(right);
  if (of_left.end <= of_right.begin || of_right.end <= of_left.begin) return false;
  // Tensors with gaps, as columns of a matrix, may lie between each other: count owners.
  const auto size = static_cast<std::uintptr_t>(left.element_size());
  const std::uintptr_t begin = std::min(of_left.begin, of_right.begin);
  if (left.element_size() != right.element_size() || (of_left.begin - of_right.begin) % size != 0) {
    return true;
  }
  const auto elements = (std::max(of_left.end, of_right.end) - begin) / size;
  const at::Tensor owners = at::zeros({static_cast<std::int64_t>(elements)}, at::kByte);
  const auto view_of = [&](const at::Tensor& tensor, const AddressRange& range) {
    return owners.as_strided(tensor.sizes(), tensor.strides(),
                             static_cast<std::int64_t>((range.begin - begin) / size));
  };
  view_of(left, of_left).fill_(1);
  return view_of(right, of_right).any().item<bool>();
}

std::vector<at::Tensor> with_separate_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  std::map<std::uintptr_t, std::uintptr_t> taken;  // by their ends the beginnings
  for (at::Tensor& parameter : each_once(parameters)) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
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

}  // namespace lockstep
