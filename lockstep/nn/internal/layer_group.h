#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A separate process group for layers that communicate, so that their collectives cannot mix with
/// those of DistributedDataParallel, which run at the same time. All such layers over one parent
/// group share it.
struct LayerGroup {
  ProcessGroup group;
  std::uint64_t layers = 0;  ///< number of layers so far; equal on every rank
  std::uint64_t number_layer() { return ++layers; }
};

/// The layer group of `parent`; created if it does not exist on every rank. Collective.
/// Lifetime: it lives as long as a layer holds it.
/// Errors: as ProcessGroup::new_group.
std::shared_ptr<LayerGroup> layer_group(const ProcessGroup& parent);

/// Whether layers over `parent` communicate: not with one rank, unless a recovery may replace the
/// group.
bool needs_layer_group(const ProcessGroup& parent);

/// Moves the layers over the default group to `parent`, which replaces it. Collective in `parent`,
/// unless that is a stand-in (comm/internal/stand_in_group.h).
/// Errors: as ProcessGroup::new_group.
void regroup_layers(const ProcessGroup& parent);

}  // namespace lockstep::inline internal
