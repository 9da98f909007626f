#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// What a backward pass has shown of the gradients of some parameters.
struct ObservedGraph {
  /// The parameters in the order in which their gradients were complete.
  std::vector<std::size_t> order;
  /// By parameter.
  std::vector<bool> has_gradient;
  std::vector<bool> is_sparse;
};

/// What all ranks have seen together: rank 0's order, and what any rank has or finds sparse.
/// Collective. Errors: as Work::wait.
ObservedGraph agree_on_graph(const ProcessGroup& group, const ObservedGraph& own);

}  // namespace lockstep
