#include "lockstep/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using Kind = PipelineAction::Kind;

constexpr std::array kScheduleNames = {
    std::pair(PipelineSchedule::kGPipe, std::string_view("gpipe")),
    std::pair(PipelineSchedule::k1F1B, std::string_view("1f1b")),
    std::pair(PipelineSchedule::kInterleaved1F1B, std::string_view("interleaved-1f1b"))};

void check_shape(PipelineSchedule schedule, const PipelineShape& shape) {
  for (const auto& [name, value] : {std::pair("ranks", shape.ranks),
                                    {"chunks_per_rank", shape.chunks_per_rank},
                                    {"micro_batches", shape.micro_batches}}) {
    if (value < 1) {
      throw UsageError(concat("plan a pipeline: ", name, " is ", value, "; it must be at least 1"));
    }
  }
  if (shape.chunks_per_rank > 1 && schedule != PipelineSchedule::kInterleaved1F1B) {
    throw UsageError(concat("plan a pipeline: ", shape.chunks_per_rank, " chunks a rank by ",
                            name_of(schedule), "; take interleaved-1f1b, or one chunk"));
  }
}

// With several chunks micro-batches go in groups of as many as ranks, each through all chunks
// before the next begins, so that a group comes back to the first rank when that has sent it off.
// Where they do not come out even, the last group is planned as a full one and those that are not
// there are left out: what takes no time keeps nobody waiting.
int planned_micro_batches(const PipelineShape& shape) {
  if (shape.chunks_per_rank == 1) return shape.micro_batches;
  return (shape.micro_batches + shape.ranks - 1) / shape.ranks * shape.ranks;
}

std::vector<PipelineAction> passes_of(Kind kind, const PipelineShape& shape) {
  std::vector<PipelineAction> passes;
  const int planned = planned_micro_batches(shape);
  for (int group = 0; group < planned; group += shape.ranks) {
    const int end = std::min(group + shape.ranks, planned);
    for (int i = 0; i < shape.chunks_per_rank; ++i) {
      const int chunk = kind == Kind::kForward ? i : shape.chunks_per_rank - 1 - i;
      for (int each = group; each < end; ++each) passes.push_back({kind, each, chunk});
    }
  }
  return passes;
}

// How many forward passes a rank makes before its first backward pass, beside the one that comes
// right before it. With one chunk, as long as the first micro-batch needs to come back. With more,
// each rank is twice as far ahead of the next, so that also the wait for the way back through the
// other chunks is filled.
int warm_up_passes(PipelineSchedule schedule, const PipelineShape& shape, int rank) {
  const int passes = shape.chunks_per_rank * planned_micro_batches(shape);
  const int ranks_behind = shape.ranks - 1 - rank;
  if (schedule == PipelineSchedule::kGPipe) return passes;
  const int wanted = shape.chunks_per_rank == 1
                         ? ranks_behind
                         : 2 * ranks_behind + (shape.chunks_per_rank - 1) * shape.ranks;
  return std::min(wanted, passes);
}

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

std::string_view name_of(PipelineSchedule schedule) {
  return std::ranges::find(kScheduleNames, schedule, [](const auto& each) { return each.first; })
      ->second;
}

PipelineSchedule pipeline_schedule_of(std::string_view name) {
  for (const auto& [schedule, its_name] : kScheduleNames) {
    if (name == its_name) return schedule;
  }
  throw UsageError(concat("there is no pipeline schedule '", name,
                          "'; there are gpipe, 1f1b and interleaved-1f1b"));
}

std::vector<PipelineAction> plan_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                          int rank) {
  check_shape(schedule, shape);
  if (rank < 0 || rank >= shape.ranks) {
    throw UsageError(
        concat("plan a pipeline: there is no rank ", rank, " in one of ", shape.ranks));
  }
  const std::vector<PipelineAction> forward = passes_of(Kind::kForward, shape);
  const std::vector<PipelineAction> backward = passes_of(Kind::kBackward, shape);
  const auto ahead = static_cast<std::size_t>(warm_up_passes(schedule, shape, rank));
  std::vector<PipelineAction> plan;
  for (std::size_t i = 0; i < forward.size() + ahead; ++i) {
    if (i < forward.size()) plan.push_back(forward[i]);
    if (i >= ahead) plan.push_back(backward[i - ahead]);
  }
  std::erase_if(plan, [&](const auto& each) { return each.micro_batch >= shape.micro_batches; });
  return plan;
}

double bubble_fraction(PipelineSchedule schedule, const PipelineShape& shape) {
  check_shape(schedule, shape);
  const double others = shape.ranks - 1;
  return others / (shape.chunks_per_rank * shape.micro_batches + others);
}

PipelineSimulation simulate_pipeline(PipelineSchedule schedule, const PipelineShape& shape,
                                     const PassTimes& times) {
  std::vector<std::vector<PipelineAction>> plans;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    plans.push_back(plan_pipeline(schedule, shape, rank));
  }
  PipelineSimulation result;
  result.max_activations.assign(plans.size(), 0);
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
    result.max_activations[rank] = std::max(result.max_activations[rank], activations[rank]);
    result.makespan = std::max(result.makespan, end);
    result.actions.push_back(*first);
  }
  const double work = shape.micro_batches * (times.forward + times.backward);
  result.bubble_fraction = 1 - work / result.makespan;
  return result;
}

}  // namespace lockstep
