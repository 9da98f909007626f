#include "python/src/staging.h"

#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::python {
namespace {

constexpr std::array kExchangeable = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt,
                                      at::kLong,  at::kChar,   at::kByte, at::kBool};

std::string shape_of(const at::Tensor& tensor) {
  return c10::str(tensor.sizes(), " ", c10::toString(tensor.scalar_type()));
}

// [rows, bytes of a row], so that splits along dimension 0 mean the same.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  const auto options = at::TensorOptions(at::kByte);
  if (bytes == 0) return at::empty({rows, 0}, options);
  return at::from_blob(
      tensor.data_ptr(), {rows, bytes / rows}, [owner = tensor](void*) {}, options);
}

}  // namespace

at::Tensor Staging::as_exchangeable(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (std::ranges::count(kExchangeable, dtype) > 0) return tensor;
  dtype_name_ = c10::toString(dtype);
  if (use_ == Use::kMove) return as_bytes(tensor);
  const bool sums = op_ == ReduceOp::kSum || op_ == ReduceOp::kAvg;
  const bool is_complex = dtype == at::kComplexFloat || dtype == at::kComplexDouble;
  if (is_complex && sums) return at::view_as_real(tensor);
  throw UsageError(concat(operation_, ": ", name_of(op_), " is not defined for ", dtype_name_,
                          "; convert the tensor"));
}

at::Tensor Staging::stage(const at::Tensor& tensor, bool is_read, bool is_written) {
  if (!tensor.defined()) throw UsageError(concat(operation_, ": a tensor is undefined"));
  if (tensor.layout() != at::kStrided) {
    throw UsageError(concat(operation_, ": takes dense tensors; pass a to_dense() copy"));
  }
  if (!tensor.is_cpu()) {
    throw UsageError(concat(operation_, ": the backend lockstep takes tensors on the CPU, not on ",
                            tensor.device().str(), "; use backend=\"cpu:lockstep,cuda:nccl\""));
  }
  const c10::NoGradGuard no_grad;
  // The caller may give its tensor other memory or another shape before the call is complete.
  // This is detach() without the dispatcher, which takes a third of a microsecond.
  const at::Tensor plain = tensor.tensor_data();
  if (plain.is_contiguous() && !plain.is_conj() && !plain.is_neg()) return as_exchangeable(plain);
  at::Tensor copy = at::empty(plain.sizes(), plain.options());
  if (is_read) copy.copy_(plain);
  if (is_written) copies_.emplace_back(plain, copy);
  return as_exchangeable(copy);
}

std::vector<at::Tensor> Staging::in(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> staged;
  for (const at::Tensor& tensor : tensors) staged.push_back(in(tensor));
  return staged;
}

std::vector<at::Tensor> Staging::out(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> staged;
  for (const at::Tensor& tensor : tensors) staged.push_back(out(tensor));
  return staged;
}

std::function<void()> Staging::write_results() const {
  if (copies_.empty()) return {};
  return [copies = copies_] {
    const c10::NoGradGuard no_grad;
    for (const auto& [target, source] : copies) {
      const c10::InferenceMode as_target(target.is_inference());
      target.copy_(source);
    }
  };
}

ReduceOp reduce_op(const char* operation, const c10d::ReduceOp& op) {
  // Numbered alike: lockstep/comm/internal/c10d_backend.cpp.
  if (op.op_ <= c10d::ReduceOp::BXOR) return static_cast<ReduceOp>(op.op_);
  throw UsageError(
      concat(operation,
             ": there is no such reduction; use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR"));
}

const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors[0];
  throw UsageError(concat(operation, ": takes one tensor, not ", tensors.size()));
}

const std::vector<at::Tensor>& only(const char* operation,
                                    const std::vector<std::vector<at::Tensor>>& lists) {
  if (lists.size() == 1) return lists[0];
  throw UsageError(concat(operation, ": takes one list of tensors, not ", lists.size()));
}

void check_alike(const char* operation, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& like) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined() || !like.defined()) {
      throw UsageError(concat(operation, ": a tensor is undefined"));
    }
    if (tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes()) continue;
    throw UsageError(concat(operation, ": tensor ", i, " of the list is ", shape_of(tensor),
                            ", the other side is ", shape_of(like),
                            "; they must have the same shape and dtype"));
  }
}

}  // namespace lockstep::python
