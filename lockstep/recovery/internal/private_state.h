#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// Moves tensors from memory of one copy per machine to memory of this process. Returns false if
/// ranks of another generation have made a step meanwhile: the result may then be a mixture of two
/// steps.
/// Errors: UsageError for an optimizer that snapshots do not know.
bool take_out_of_copies(const std::vector<at::Tensor>& parameters,
                        const std::vector<torch::optim::Optimizer*>& optimizers);

}  // namespace lockstep::inline internal
