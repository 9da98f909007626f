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

/// All state that a training step reads and changes; equal on all ranks when a step ends.
struct TrainingParts {
  /// The model, with its parameters and buffers.
  std::shared_ptr<torch::nn::Module> model = {};
  /// Null: none.
  torch::optim::Optimizer* optimizer = nullptr;
  /// Null: none.
  torch::optim::LRScheduler* scheduler = nullptr;
  /// Further tensors of the program, which steps change in place.
  TensorDict extra = {};
};

}  // namespace lockstep
