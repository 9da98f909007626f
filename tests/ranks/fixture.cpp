#include "tests/ranks/fixture.h"

#include <numeric>
#include <string_view>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::testing {

std::vector<Memory> Conformance::memories() const {
  const auto backend = group_.c10d_backend();
  if (!backend || !backend->supportsTensorAlloc(group_.device().index())) {
    return {Memory::kOrdinary};
  }
  return {Memory::kOrdinary, Memory::kBackend, Memory::kMixed};
}

at::Tensor Conformance::place(const at::Tensor& tensor, Memory memory) const {
  const bool in_backend =
      memory == Memory::kBackend || (memory == Memory::kMixed && rank_ % 2 == 0);
  if (!in_backend || tensor.numel() == 0) return tensor.clone();
  at::Tensor placed = group_.c10d_backend()->allocateTensor(tensor.numel(), tensor.options());
  return placed.copy_(tensor);
}

std::vector<ReduceOp> Conformance::reductions(at::ScalarType dtype) const {
  std::vector<ReduceOp> ops{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};
  if (at::isFloatingType(dtype)) {
    ops.push_back(ReduceOp::kAvg);
  } else if (group_.backend_name() != "nccl") {  // Which has no bitwise ones.
    for (const auto op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) ops.push_back(op);
  }
  return ops;
}

Tensors Conformance::outputs(std::int64_t numel, at::ScalarType dtype) const {
  Tensors tensors;
  for (int rank = 0; rank < world_size_; ++rank) tensors.push_back(zeros(numel, dtype));
  return tensors;
}

at::Tensor Conformance::zeros(std::int64_t numel, at::ScalarType dtype) const {
  return at::zeros({numel}, at::TensorOptions(dtype).device(group_.device()));
}

ProcessGroup Conformance::group_of_all(const NewGroupOptions& options) const {
  std::vector<int> all(world_size_);
  std::iota(all.begin(), all.end(), 0);
  return group_.new_group(all, options);
}

::testing::AssertionResult Conformance::same_bits_everywhere(const Tensors& tensors) const {
  std::uint64_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor local = tensor.cpu();
    const std::string_view bytes(static_cast<const char*>(local.const_data_ptr()), local.nbytes());
    hash = hash * 31 + std::hash<std::string_view>()(bytes);
  }
  const at::Tensor ours = at::full({1}, static_cast<std::int64_t>(hash), at::kLong);
  const Tensors all = outputs(1, at::kLong);
  group_.all_gather(all, ours.to(group_.device()));
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!at::equal(all[rank].cpu(), ours)) {
      return ::testing::AssertionFailure() << "rank " << rank << " holds other bits";
    }
  }
  return ::testing::AssertionSuccess();
}

std::string Conformance::concat_names(at::ScalarType dtype, std::int64_t numel) {
  return concat(c10::toString(dtype), " × ", numel);
}

::testing::AssertionResult matches(const at::Tensor& actual, const at::Tensor& expected) {
  // An average is rounded by the backend's own arithmetic; everything else is exact.
  if (at::equal(actual, expected)) return ::testing::AssertionSuccess();
  if (at::isFloatingType(actual.scalar_type())) {
    const double tolerance = actual.element_size() == 2 ? 1e-2 : 1e-6;
    if (at::allclose(actual, expected, tolerance, 0)) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "got " << actual.slice(0, 0, 8) << ", expected " << expected.slice(0, 0, 8);
}

}  // namespace lockstep::testing
