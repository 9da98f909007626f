#pragma once

#include <vector>

#include "lockstep/pipeline/schedule.h"

namespace lockstep {

/// What the passes of one micro-batch through all chunks of a rank take, in any unit; all ranks
/// alike.
struct PassTimes {
  double forward = 1;
  double backward = 2;
};

struct RankAction {
  int rank = 0;
  PipelineAction action;
  double start = 0;
};

/// A step as it would go if messages took no time.
struct PipelineSimulation {
  std::vector<RankAction> actions;  ///< Of all ranks, in an order in which one thread can do them.
  double makespan = 0;
  double bubble_fraction = 0;  ///< The idle part of all ranks' time.
  /// Of each rank, the most forward passes whose backward passes are still to come.
  std::vector<int> most_activations;
};

/// Goes through plan_pipeline's plans of all ranks. Errors: as plan_pipeline.
PipelineSimulation simulate_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                     const PassTimes& times = {});

}  // namespace lockstep
