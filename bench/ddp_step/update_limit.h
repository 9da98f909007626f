#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

/// The memory traffic of an update of one copy, and nothing else: between two barriers each rank
/// reads its share of all ranks' gradients, and reads and writes its share of the parameters and of
/// two states. On memory of its own, of the parameters' size. Collective, as each call of the
/// result.
std::function<void()> make_update_limit(const ProcessGroup& control,
                                        const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::bench
