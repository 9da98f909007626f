#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/fully_shard/internal/full_state.h"
#include "lockstep/snapshot/internal/gathered_state.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

class ShardedUnits;

/// A sharded module and an optimizer of its parameters, for snapshots: tensors are gathered unit by
/// unit, first those of the model, then each tensor that the optimizer keeps of a parameter.
/// Lifetime: refers to all three.
class ShardedTrainingState final : public GatheredState {
 public:
  ShardedTrainingState(torch::nn::Module& module, const ShardedUnits& units,
                       torch::optim::Optimizer& optimizer);

  TensorDict model() const override;
  c10::IValue optimizer() override;
  void gather(const TakeWhole& take) const override;
  void read(const Snapshot& snapshot,
            const std::function<at::Tensor(const at::Tensor& absent)>& read,
            const std::string& source) override;
  void take_over() override;

 private:
  using Place = ShardedMembers::Place;
  /// What is gathered together: of each member of a unit's flat parameter this rank's piece, and
  /// what stands for the whole; undefined where there is none.
  struct Message {
    const FlatParameter* flat;
    std::string field;  ///< of the optimizer's state; empty: the parameters
    at::ScalarType dtype;
    std::vector<at::Tensor> pieces;
    std::vector<at::Tensor> absent;
  };

  at::Tensor add_to_message(const Place& place, const std::string& field, const at::Tensor& piece);
  std::vector<const Place*> places_of_optimizer() const;

  torch::nn::Module& module_;
  ShardedMembers members_;
  torch::optim::Optimizer& optimizer_;
  std::vector<Message> parameters_;
  std::vector<Message> states_;
  std::vector<std::pair<at::Tensor, at::Tensor>> read_tensors_;  ///< target and value
  c10::IValue read_optimizer_;
  std::string source_;
};

}  // namespace lockstep::inline internal
