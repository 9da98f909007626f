#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/reduce_op.h"

/// PyTorch passes tensors of any dtype and strides; a ProcessGroup takes dense contiguous ones of
/// the dtypes that it reduces.
namespace lockstep::python {

/// The tensors of one call in the form that a ProcessGroup takes. Data stays where it is if it can:
/// what is contiguous is passed as it lies, dtypes that are only moved as their bytes, complex
/// numbers that are summed as pairs. What is not contiguous is copied; results are copied back by
/// write_results().
/// Errors: UsageError naming the operation, the tensor and what it should be.
class Staging {
 public:
  enum class Use { kMove, kReduce };

  /// `operation`: for errors. `op`: of a reduction.
  Staging(const char* operation, Use use, ReduceOp op = ReduceOp::kSum)
      : operation_(operation), use_(use), op_(op) {}

  at::Tensor in(const at::Tensor& tensor) { return stage(tensor, true, false); }
  at::Tensor out(const at::Tensor& tensor) { return stage(tensor, false, true); }
  at::Tensor in_out(const at::Tensor& tensor) { return stage(tensor, true, true); }
  std::vector<at::Tensor> in(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> out(const std::vector<at::Tensor>& tensors);

  /// Copies results back; empty if nothing was copied.
  std::function<void()> write_results() const;
  /// Tells dtypes apart that are passed as the same one: compared between ranks. Else empty.
  const std::string& dtype_name() const { return dtype_name_; }

 private:
  at::Tensor stage(const at::Tensor& tensor, bool is_read, bool is_written);
  at::Tensor as_exchangeable(const at::Tensor& tensor);

  const char* operation_;
  Use use_;
  ReduceOp op_;
  std::string dtype_name_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< target, source
};

/// Errors: UsageError for reductions that need more than an operator (PREMUL_SUM).
ReduceOp reduce_op(const char* operation, const c10d::ReduceOp& op);

/// The one tensor of a call's list. Errors: UsageError.
const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors);
const std::vector<at::Tensor>& only(const char* operation,
                                    const std::vector<std::vector<at::Tensor>>& lists);

/// Each of `tensors` has the dtype and the shape of `like`. Errors: UsageError.
void check_alike(const char* operation, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& like);

}  // namespace lockstep::python
