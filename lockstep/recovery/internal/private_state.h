#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// Moves what lies in memory of one copy per machine to memory of this process alone. Returns false
/// where ranks of another generation have made a step meanwhile: the result may be a mixture.
/// Errors: UsageError for an optimizer that snapshots do not know.
bool take_out_of_copies(const std::vector<at::Tensor>& parameters,
                        const std::vector<torch::optim::Optimizer*>& optimizers);

}  // namespace lockstep::inline internal
