#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/fully_shard/internal/flat_parameter.h"
#include "lockstep/snapshot/state_dict.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline internal {

class ShardedUnits;

/// Finds what is kept of a module's parameter. Lifetime: refers to the units.
class ShardedMembers {
 public:
  struct Place {
    FlatParameter* flat;
    std::size_t index;

    const FlatParameter::Member& member() const { return flat->members()[index]; }
    at::Tensor piece() const { return member().piece; }
  };

  explicit ShardedMembers(const ShardedUnits& units);

  /// Null where the parameter is not sharded.
  const FlatParameter::Member* find(const at::Tensor& parameter) const;
  const Place* place_of(const at::Tensor& parameter) const;
  /// Of the parameter that a tensor of parameters() is this rank's piece of; null for any other.
  const Place* place_of_piece(const at::Tensor& piece) const;

 private:
  std::unordered_map<const void*, Place> places_;
  std::unordered_map<const void*, Place> places_of_pieces_;
};

/// This rank's pieces of all of its members.
std::vector<at::Tensor> pieces_of(const FlatParameter& flat);

/// Calls `visit` with the names and tensors of state_dict(), in its order: the module's own.
void for_each_tensor(const torch::nn::Module& module,
                     const std::function<void(const std::string&, const at::Tensor&)>& visit);

/// What cannot be copied of the values, for messages: "'a' is missing".
std::vector<std::string> state_differences(const torch::nn::Module& module,
                                           const ShardedMembers& members, const TensorDict& values);

/// The first few of them, for a message.
std::string some_differences(const std::vector<std::string>& differences);

/// The state dict that the module would have if it was not sharded; empty unless `keep`.
/// Collective. Errors: as Work::wait.
TensorDict gather_full_state(const torch::nn::Module& module, const ShardedUnits& units, bool keep);

/// Copies this rank's pieces of the values, and what is not sharded. All or nothing. Tied
/// parameters need a value for one of their names. Errors: UsageError naming what differs in names,
/// shapes or dtypes.
void load_full_state(const torch::nn::Module& module, const ShardedUnits& units,
                     const TensorDict& state);

}  // namespace lockstep::inline internal
