#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

/// In which order the ranks of a pipeline take the micro-batches of a step. All give the same
/// gradients, bit for bit: each stage's backward passes go by micro-batch.
enum class PipelineSchedule {
  kGPipe,  ///< All forward passes, then all backward passes. Huang et al., 2019.
  k1F1B,   ///< Backward as soon as it can be: a rank keeps as many activations as there
           ///< are ranks from it on, and not all. PipeDream-Flush; Narayanan et al., 2021.
  kInterleaved1F1B,  ///< 1F1B where each rank has several stages, far apart: a shorter bubble for
                     ///< more messages. Narayanan et al., SC21.
};

/// "gpipe", "1f1b" and "interleaved-1f1b".
std::string_view name_of(PipelineSchedule schedule);
/// Errors: UsageError for another name, with those that there are.
PipelineSchedule pipeline_schedule_of(std::string_view name);

/// Stage s, of ranks × chunks_per_rank, is chunk s / ranks of rank s % ranks.
struct PipelineShape {
  int ranks = 1;
  int chunks_per_rank = 1;  ///< Above 1 only with kInterleaved1F1B.
  int micro_batches = 1;

  int stages() const { return ranks * chunks_per_rank; }
};

struct PipelineAction {
  enum class Kind { kForward, kBackward };
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  int chunk = 0;  ///< Of the rank's own.

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// What one rank does in a step, in order. Ranks that send without waiting, and wait for what the
/// next action needs, all come to the end. Any number of micro-batches will do, also for
/// kInterleaved1F1B, but multiples of the ranks give it the shortest bubble.
/// Errors: UsageError for a number below 1, a rank outside of the shape and several chunks without
/// kInterleaved1F1B.
std::vector<PipelineAction> plan_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                          int rank);

/// The part of a step that a rank is idle where all stages cost the same and messages nothing:
/// (p - 1) / (v m + p - 1) with p ranks, v chunks a rank and m micro-batches. kInterleaved1F1B
/// reaches it where m is a multiple of p. Errors: as plan_pipeline.
double bubble_fraction(PipelineSchedule schedule, const PipelineShape& shape);

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
