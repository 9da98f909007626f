#pragma once

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Returns when every rank's module has the same parameters and buffers as rank 0's, in names,
/// order, shapes, dtypes and need of a gradient. Collective. Errors: UsageError on every rank,
/// naming a rank that differs and the first difference.
void check_models_agree(const ProcessGroup& group, const torch::nn::Module& module);

}  // namespace lockstep
