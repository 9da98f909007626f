#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Named tensors in the order of their module, as Python's state_dict: "0.weight", "0.bias", ….
using TensorDict = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep
