#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

inline constexpr const char* kOptimizerStates = "state";
inline constexpr const char* kOptimizerGroups = "param_groups";

/// What an optimizer keeps of a parameter as a whole, not of its elements.
std::set<std::string> numbers_of(const torch::optim::Optimizer& optimizer);

using MapField = std::function<at::Tensor(std::int64_t index, const std::string& field,
                                          const at::Tensor& tensor)>;
/// The same state dict with other tensors in the states of its parameters.
c10::IValue map_states(const c10::IValue& optimizer, const MapField& map);

}  // namespace lockstep::inline internal
