#include "lockstep/profile/step_timer.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/profile/internal/step_summary.h"

namespace lockstep {
namespace {

// What a rank sends: this many numbers, then its arrivals.
constexpr std::int64_t kHeader = 2 + kStepPhases;

void write_steps(const RankSteps& steps, std::int64_t* numbers) {
  *numbers++ = steps.steps;
  *numbers++ = steps.clock;
  for (const auto phase : steps.total) *numbers++ = phase.count();
  for (const auto arrival : steps.arrivals) *numbers++ = arrival.count();
}

RankSteps read_steps(const std::int64_t* numbers, std::size_t arrivals) {
  RankSteps steps;
  steps.steps = *numbers++;
  steps.clock = *numbers++;
  for (auto& phase : steps.total) phase = std::chrono::nanoseconds(*numbers++);
  for (std::size_t i = 0; i < arrivals; ++i) {
    steps.arrivals.push_back(std::chrono::nanoseconds(*numbers++));
  }
  return steps;
}

constexpr auto kExchangeIndex = static_cast<std::size_t>(StepPhase::kExchange);

// Steady clocks are those of a boot of a machine, which share memory.
std::int64_t clock_id() {
  return static_cast<std::int64_t>(std::hash<std::string>()(memory_domain()));
}

}  // namespace

StepPhase StepTimer::enter(StepPhase phase) {
  const Instant now = std::chrono::steady_clock::now();
  if (is_running_) total_[static_cast<std::size_t>(phase_)] += now - since_;
  is_running_ = true;
  since_ = now;
  return std::exchange(phase_, phase);
}

void StepTimer::arrive() {
  enter(StepPhase::kExchange);
  const auto ahead = total_[kExchangeIndex] - waited_;
  arrivals_[static_cast<std::size_t>(steps_++) % kArrivals] = since_ - ahead;
}

void StepTimer::end_step() {
  enter(StepPhase::kOther);
  waited_ = total_[kExchangeIndex];
}

StepSummary StepTimer::summarize(const ProcessGroup& group) {
  const ProcessGroup ranks = group ? group : default_process_group();
  enter(phase_);
  RankSteps own{.steps = steps_, .total = total_, .clock = clock_id()};
  const std::int64_t arrivals = std::min<std::int64_t>(steps_, kArrivals);
  for (std::int64_t step = steps_ - arrivals; step < steps_; ++step) {
    own.arrivals.push_back(
        arrivals_[static_cast<std::size_t>(step) % kArrivals].time_since_epoch());
  }
  steps_ = 0;
  total_ = {};
  waited_ = {};

  const at::Tensor message = at::zeros({kHeader + static_cast<std::int64_t>(kArrivals)}, at::kLong);
  write_steps(own, message.mutable_data_ptr<std::int64_t>());
  at::Tensor all = at::empty({ranks.world_size() * message.numel()},
                             at::TensorOptions(at::kLong).device(ranks.device()));
  ranks.all_gather_into_tensor(all, message.to(ranks.device()));
  all = all.cpu();
  std::vector<RankSteps> gathered;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    gathered.push_back(read_steps(all.const_data_ptr<std::int64_t>() + rank * message.numel(),
                                  own.arrivals.size()));
    if (gathered.back().steps == gathered[0].steps) continue;
    throw UsageError(concat("StepTimer::summarize on rank ", ranks.rank(), ": rank ", rank,
                            " made ", gathered.back().steps, " steps where rank 0 made ",
                            gathered[0].steps, "; call it after the same steps on every rank"));
  }
  enter(phase_);
  total_ = {};  // without the time that this took
  return lockstep::summarize(gathered);
}

}  // namespace lockstep
