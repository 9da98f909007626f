#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Layout of a parameter's gradients.
enum class GradientLayout : std::uint8_t {
  kUnknown,  ///< no gradient yet
  kStrided,
  kSparse,
  kBoth,  ///< strided on some ranks, sparse on others
};

/// What a backward pass has shown about the gradients of some parameters.
struct ObservedGraph {
  /// Parameters in the order in which their gradients were complete.
  std::vector<std::size_t> order;
  /// By parameter.
  std::vector<GradientLayout> layouts;
};

/// Combines what all ranks have seen: rank 0's order, and the layouts of all ranks. Collective.
/// Errors: as Work::wait.
ObservedGraph agree_on_graph(const ProcessGroup& group, const ObservedGraph& own);

/// Combines the layouts of all ranks. Collective.
/// Errors: as Work::wait.
std::vector<GradientLayout> agree_on_layouts(const ProcessGroup& group,
                                             const std::vector<GradientLayout>& own);

}  // namespace lockstep::inline internal
