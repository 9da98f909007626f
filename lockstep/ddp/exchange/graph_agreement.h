#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// How a parameter's gradients lie in memory.
enum class GradientLayout : std::uint8_t {
  kUnknown,  ///< there was none yet
  kStrided,
  kSparse,
  kBoth,  ///< strided on some ranks, sparse on others
};

/// What a backward pass has shown of the gradients of some parameters.
struct ObservedGraph {
  /// The parameters in the order in which their gradients were complete.
  std::vector<std::size_t> order;
  /// By parameter.
  std::vector<GradientLayout> layouts;
};

/// What all ranks have seen together: rank 0's order, and the layouts of any rank.
/// Collective. Errors: as Work::wait.
ObservedGraph agree_on_graph(const ProcessGroup& group, const ObservedGraph& own);

/// The layouts of any rank. Collective. Errors: as Work::wait.
std::vector<GradientLayout> agree_on_layouts(const ProcessGroup& group,
                                             const std::vector<GradientLayout>& own);

}  // namespace lockstep::inline internal
