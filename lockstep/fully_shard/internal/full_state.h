#pragma once

#include <cstddef>
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
  };

  explicit ShardedMembers(const ShardedUnits& units);

  /// Null where the parameter is not sharded.
  const FlatParameter::Member* find(const at::Tensor& parameter) const;
  const Place* place_of(const at::Tensor& parameter) const;

 private:
  std::unordered_map<const void*, Place> places_;
};

/// The state dict that the module would have if it was not sharded; empty unless `keep`.
/// Collective. Errors: as Work::wait.
TensorDict gather_full_state(const torch::nn::Module& module, const ShardedUnits& units, bool keep);

/// Copies this rank's pieces of the values, and what is not sharded. All or nothing.
/// Errors: UsageError naming what differs in names, shapes or dtypes.
void load_full_state(const torch::nn::Module& module, const ShardedUnits& units,
                     const TensorDict& values);

}  // namespace lockstep::inline internal
