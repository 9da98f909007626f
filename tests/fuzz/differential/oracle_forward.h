#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/fuzz/differential/graph.h"

namespace lockstep::differential {

/// One forward pass of all ranks, operator by operator, so that statistics can be those of all
/// samples.
std::vector<at::Tensor> forward_all_ranks(const Plan& plan, std::vector<Model>& models,
                                          const std::vector<at::Tensor>& inputs, int step);

}  // namespace lockstep::differential
