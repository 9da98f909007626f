#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A process group of their own for layers that communicate, so that their exchanges cannot meet
/// those of DistributedDataParallel, which go on at the same time. All such layers over one parent
/// group share it.
struct LayerGroup {
  ProcessGroup group;
  std::uint64_t layers = 0;  ///< Layers numbered so far: the same on every rank.
  std::uint64_t number_layer() { return ++layers; }
};

/// The layer group of `parent`, made where it does not exist on every rank. Collective.
/// Lifetime: a layer group lives as long as a layer holds it. Errors: as ProcessGroup::new_group.
std::shared_ptr<LayerGroup> layer_group(const ProcessGroup& parent);

/// Whether layers over `parent` communicate: with one rank they need not, unless another group may
/// take its place.
bool needs_layer_group(const ProcessGroup& parent);

/// The layers over the default group communicate over `parent` from now on, which takes its place.
/// Collective in `parent`, unless that is a stand-in (comm/internal/stand_in_group.h).
/// Errors: as ProcessGroup::new_group.
void regroup_layers(const ProcessGroup& parent);

}  // namespace lockstep::inline internal
