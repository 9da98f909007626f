#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

/// The order in which a rank runs the passes of micro-batches. All schedules give the same bits of
/// gradients: each stage's backward passes are in the order of micro-batches.
enum class PipelineSchedule {
  kGPipe,  ///< all forward passes, then all backward passes (Huang et al., 2019)
  /// One forward, one backward: each backward pass runs as early as possible. A rank keeps at most
  /// as many activations as there are ranks from it on. PipeDream-Flush (Narayanan et al., 2021).
  k1F1B,
  /// 1F1B with several stages per rank, far apart: a smaller bubble for more messages (Narayanan et
  /// al., SC21).
  kInterleaved1F1B,
};

/// "gpipe", "1f1b" or "interleaved-1f1b".
std::string_view name_of(PipelineSchedule schedule);
/// The schedule of this name.
/// Errors: UsageError for another name, listing the valid ones.
PipelineSchedule pipeline_schedule_of(std::string_view name);

/// Size of a pipeline. Stage s, of ranks × chunks_per_rank stages, is chunk s / ranks of rank s %
/// ranks.
struct PipelineShape {
  int ranks = 1;
  int chunks_per_rank = 1;  ///< above 1 only with kInterleaved1F1B
  int micro_batches = 1;

  /// The number of stages.
  int stages() const { return ranks * chunks_per_rank; }
};

/// One forward or backward pass of a micro-batch through a chunk.
struct PipelineAction {
  /// The direction of a pass.
  enum class Kind { kForward, kBackward };
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  int chunk = 0;  ///< among the rank's chunks

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// The passes of one rank in a step, in order. The plans do not deadlock if ranks send without
/// waiting and wait only for what their next action needs. Any number of micro-batches is allowed;
/// for kInterleaved1F1B a multiple of the ranks gives the smallest bubble.
/// Errors: UsageError for a number below 1, a rank outside of the shape, and several chunks per
/// rank without kInterleaved1F1B.
std::vector<PipelineAction> plan_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                          int rank);

/// The fraction of a step in which a rank is idle, if all stages cost the same and messages
/// nothing: (p - 1) / (v m + p - 1) with p ranks, v chunks per rank and m micro-batches.
/// kInterleaved1F1B reaches it if m is a multiple of p.
/// Errors: as plan_pipeline.
double bubble_fraction(PipelineSchedule schedule, const PipelineShape& shape);

/// Time of the passes of one micro-batch through all chunks of a rank, in any unit; equal on all
/// ranks.
struct PassTimes {
  double forward = 1;
  double backward = 2;
};

/// An action of a rank, with its start time.
struct RankAction {
  int rank = 0;
  PipelineAction action;
  double start = 0;
};

/// A simulated step, in which messages take no time.
struct PipelineSimulation {
  std::vector<RankAction> actions;  ///< of all ranks, in an order in which one thread can run them
  double makespan = 0;
  double bubble_fraction = 0;  ///< idle fraction of the time of all ranks
  /// By rank: the largest number of forward passes whose backward passes have not yet run.
  std::vector<int> max_activations;
};

/// Simulates plan_pipeline()'s plans of all ranks.
/// Errors: as plan_pipeline.
PipelineSimulation simulate_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                     const PassTimes& times = {});

}  // namespace lockstep
