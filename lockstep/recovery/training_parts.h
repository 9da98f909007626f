#pragma once

#include <memory>

#include "lockstep/snapshot/state_dict.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace lockstep {

/// All that a training step reads and leaves changed, the same on all ranks when a step ends.
struct TrainingParts {
  std::shared_ptr<torch::nn::Module> model = {};
  /// Null where there is none.
  torch::optim::Optimizer* optimizer = nullptr;
  torch::optim::LRScheduler* scheduler = nullptr;
  /// The program's own tensors, which steps change in place.
  TensorDict extra = {};
};

}  // namespace lockstep
