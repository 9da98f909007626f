#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

/// Trees of dicts, lists and tuples with tensors and plain values in them.
namespace lockstep::inline internal {

/// The same tree with what `map` makes of each tensor, in the tree's order. `name`: where the
/// tensor stands, "optimizer.state.0.exp_avg".
using TensorMap = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
c10::IValue map_tensors(const c10::IValue& tree, const TensorMap& map);

/// Calls `visit` with each tensor, as map_tensors().
void visit_tensors(const c10::IValue& tree,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit);

}  // namespace lockstep::inline internal
