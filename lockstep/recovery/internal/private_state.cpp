#include "lockstep/recovery/internal/private_state.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/snapshot/internal/optimizer_state.h"

namespace lockstep::inline internal {

bool take_out_of_copies(const std::vector<at::Tensor>& parameters,
                        const std::vector<torch::optim::Optimizer*>& optimizers) {
  const c10::NoGradGuard no_grad;
  const KeptMemory shared(parameters);
  if (shared.memories().empty()) return true;
  for (const KeptMemory::Binding& binding : shared.bindings()) {
    at::Tensor parameter = parameters[binding.parameter];
    parameter.set_data(parameter.detach().clone());
  }
  for (torch::optim::Optimizer* const optimizer : optimizers) {
    load_optimizer_state_dict(*optimizer, optimizer_state_dict(*optimizer));
  }
  return std::ranges::all_of(shared.memories(),
                             [](const auto& memory) { return memory->is_current(); });
}

}  // namespace lockstep::inline internal
