#include <algorithm>
#include <cstddef>
#include <optional>

#include "lockstep/base/internal/check.h"
#include "lockstep/pipeline/schedule.h"

namespace lockstep {
namespace {

using Kind = PipelineAction::Kind;

// When each pass has ended, where it has.
class EndTimes {
 public:
  explicit EndTimes(const PipelineShape& shape)
      : shape_(shape), ends_(index(Kind::kBackward, shape.stages() - 1, shape.micro_batches)) {}

  std::optional<double>& of(Kind kind, int stage, int micro_batch) {
    return ends_[index(kind, stage, micro_batch)];
  }

  // When a pass can start, as far as others are concerned; nothing while they have not ended.
  std::optional<double> ready(Kind kind, int stage, int micro_batch) {
    if (kind == Kind::kForward) {
      return stage == 0 ? std::optional(0.0) : of(kind, stage - 1, micro_batch);
    }
    return stage == shape_.stages() - 1 ? of(Kind::kForward, stage, micro_batch)
                                        : of(kind, stage + 1, micro_batch);
  }

 private:
  std::size_t index(Kind kind, int stage, int micro_batch) const {
    const int of_kind = kind == Kind::kForward ? 0 : shape_.stages();
    return static_cast<std::size_t>((of_kind + stage) * shape_.micro_batches + micro_batch);
  }

  PipelineShape shape_;
  std::vector<std::optional<double>> ends_;
};

}  // namespace

PipelineSimulation simulate_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                     const PassTimes& times) {
  std::vector<std::vector<PipelineAction>> plans;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    plans.push_back(plan_pipeline(schedule, shape, rank));
  }
  PipelineSimulation result;
  result.most_activations.assign(plans.size(), 0);
  std::vector<std::size_t> next(plans.size(), 0);
  std::vector<double> free_at(plans.size(), 0.0);
  std::vector<int> activations(plans.size(), 0);
  EndTimes ends(shape);
  const auto total = plans.size() * plans[0].size();
  while (result.actions.size() < total) {
    // Of those that could go on, the rank that does so first; of equals the one furthest behind.
    std::optional<RankAction> first;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      if (next[rank] == plans[rank].size()) continue;
      const PipelineAction& action = plans[rank][next[rank]];
      const int stage = action.chunk * shape.ranks + static_cast<int>(rank);
      const auto ready = ends.ready(action.kind, stage, action.micro_batch);
      if (!ready) continue;
      const double start = std::max(*ready, free_at[rank]);
      if (!first || start < first->start) first = RankAction{static_cast<int>(rank), action, start};
    }
    LOCKSTEP_ASSERT(first.has_value());  // Else the plans wait for each other.
    const auto rank = static_cast<std::size_t>(first->rank);
    const bool is_forward = first->action.kind == Kind::kForward;
    const double end =
        first->start + (is_forward ? times.forward : times.backward) / shape.chunks_per_rank;
    ends.of(first->action.kind, first->action.chunk * shape.ranks + first->rank,
            first->action.micro_batch) = end;
    free_at[rank] = end;
    ++next[rank];
    activations[rank] += is_forward ? 1 : -1;
    result.most_activations[rank] = std::max(result.most_activations[rank], activations[rank]);
    result.makespan = std::max(result.makespan, end);
    result.actions.push_back(*first);
  }
  const double work = shape.micro_batches * (times.forward + times.backward);
  result.bubble_fraction = 1 - work / result.makespan;
  return result;
}

}  // namespace lockstep
