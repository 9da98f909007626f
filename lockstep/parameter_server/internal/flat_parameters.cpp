#include "lockstep/parameter_server/internal/flat_parameters.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace lockstep::parameter_server::inline internal {
namespace {

// Calls `take` with each part of a parameter that lies in the slice, and where in the slice it is.
template <class Take>
void for_each_part(const std::vector<at::Tensor>& parameters, const Slice& slice, Take&& take) {
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const std::int64_t end = begin + parameter.numel();
    const std::int64_t first = std::max(begin, slice.begin);
    const std::int64_t last = std::min(end, slice.end);
    if (first < last)
      take(parameter.detach().view(-1).slice(0, first - begin, last - begin), first - slice.begin);
    begin = end;
  }
}

}  // namespace

std::int64_t count_elements(const std::vector<at::Tensor>& parameters) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters) count += parameter.numel();
  return count;
}

at::Tensor read_slice(const std::vector<at::Tensor>& parameters, const Slice& slice) {
  const at::TensorOptions options =
      parameters.empty() ? at::TensorOptions(at::kFloat) : parameters[0].options();
  at::Tensor values = at::empty({slice.size()}, options.requires_grad(false));
  for_each_part(parameters, slice, [&](const at::Tensor& part, std::int64_t place) {
    values.narrow(0, place, part.numel()).copy_(part);
  });
  return values;
}

void write_slice(const std::vector<at::Tensor>& parameters, const Slice& slice,
                 const at::Tensor& values) {
  for_each_part(parameters, slice, [&](const at::Tensor& part, std::int64_t place) {
    part.copy_(values.narrow(0, place, part.numel()));
  });
}

}  // namespace lockstep::parameter_server::inline internal
