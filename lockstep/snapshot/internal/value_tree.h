#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

/// Trees of dicts, lists and tuples, with tensors and plain values.
namespace lockstep::inline internal {

/// Maps a tensor. `name`: its path in the tree, "optimizer.state.0.exp_avg".
using TensorMap = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
/// Copies a tree with `map` applied to each tensor, in the tree's order.
c10::IValue map_tensors(const c10::IValue& tree, const TensorMap& map);

/// Calls `visit` with path and tensor, in the tree's order.
void visit_tensors(const c10::IValue& tree,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit);

}  // namespace lockstep::inline internal
