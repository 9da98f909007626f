#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/internal/optimizer_fields.h"

namespace lockstep::inline internal {

/// Makes one step of a parameter group: every parameter that has a gradient, and its state, which
/// is made where there is none. Errors: UsageError naming optimizer and parameter, before anything
/// is changed.
template <class Options>
void update_parameter_group(torch::optim::Optimizer& optimizer, std::size_t group,
                            const Options& options);

}  // namespace lockstep::inline internal
