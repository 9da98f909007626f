#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::gloo_backend {

/// Whether the result for NaN depends on the order in which Gloo compares: MIN and MAX of
/// floating-point tensors.
bool needs_keys(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

/// Maps numbers to integers of the same order, with NaN lowest for MIN and highest for MAX, so that
/// the reduction of the integers gives NaN if any rank has one.
at::Tensor ordered_keys(const at::Tensor& values, const c10d::ReduceOp& op);
std::vector<at::Tensor> ordered_keys(const std::vector<at::Tensor>& values,
                                     const c10d::ReduceOp& op);

/// A reduction of keys; converts the results to numbers in `outputs`.
c10::intrusive_ptr<c10d::Work> keyed_work(c10::intrusive_ptr<c10d::Work> work,
                                          std::vector<at::Tensor> keys,
                                          std::vector<at::Tensor> outputs);

}  // namespace lockstep::gloo_backend
