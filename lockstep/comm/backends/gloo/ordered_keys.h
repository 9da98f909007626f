#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::gloo_backend {

/// Whether the reduction is one of floating-point numbers that keeps or loses a NaN by the order in
/// which Gloo compares: MIN and MAX.
bool needs_keys(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

/// Integers that are ordered as the numbers are, with NaN before all for MIN and after all for MAX,
/// so that the same reduction of the integers gives NaN where any rank has one.
at::Tensor ordered_keys(const at::Tensor& values, const c10d::ReduceOp& op);
std::vector<at::Tensor> ordered_keys(const std::vector<at::Tensor>& values,
                                     const c10d::ReduceOp& op);

/// A reduction of keys, whose results become numbers in `outputs`.
c10::intrusive_ptr<c10d::Work> keyed_work(c10::intrusive_ptr<c10d::Work> work,
                                          std::vector<at::Tensor> keys,
                                          std::vector<at::Tensor> outputs);

}  // namespace lockstep::gloo_backend
