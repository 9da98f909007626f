#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

/// Trees of dicts, lists and tuples, with tensors and plain values.
namespace lockstep::inline internal {

/// A key of a dict in the name of a tensor.
std::string key_text(const c10::IValue& key);

/// Maps a tensor. `name`: its path in the tree, "optimizer.state.0.exp_avg".
using TensorMap = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
/// Copies a tree with `map` applied to each tensor, in the tree's order.
c10::IValue map_tensors(const c10::IValue& tree, const TensorMap& map);

/// Takes a tensor and its path in the tree.
using TensorVisit = std::function<void(const std::string& name, const at::Tensor& tensor)>;
/// Calls `visit` with each tensor, in the tree's order. Beside the tree it takes the memory of the
/// longest path.
void visit_tensors(const c10::IValue& tree, const TensorVisit& visit);

}  // namespace lockstep::inline internal
