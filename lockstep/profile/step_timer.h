#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// What the time of a training step goes into.
enum class StepPhase : std::uint8_t {
  kData,       ///< getting a batch
  kForward,    ///< the model's forward
  kBackward,   ///< from the end of forward until autograd is done: the loss, too
  kExchange,   ///< waiting for gradients and buffers that backward did not hide
  kOptimizer,  ///< the optimizer's step
  kOther,      ///< all else
};
inline constexpr std::size_t kStepPhases = 6;

/// "data", "forward", "backward", "exchange", "optimizer", "other".
const char* name_of(StepPhase phase);

/// Where the time of some steps went, on all ranks.
struct StepSummary {
  using Time = std::chrono::nanoseconds;
  struct Rank {
    std::array<Time, kStepPhases> mean{};  ///< of a step, by StepPhase
    /// In how many of arrivals_compared it was the last to come.
    std::int64_t came_last = 0;
    /// Mean time from its arrival to that of the last.
    Time ahead{};
  };
  std::int64_t steps = 0;
  std::vector<Rank> ranks = {};
  /// Steps of which arrivals were compared; 0 where ranks have different clocks.
  std::int64_t arrivals_compared = 0;
  /// The rank that the others wait for: the one that comes last, by the mean over steps; where
  /// ranks have different clocks, the one that waits least in the exchange. None of one rank, and
  /// of no steps.
  std::optional<int> straggler = std::nullopt;
  /// How long: in a step, in the mean over the others.
  Time waited_for{};
};

/// A table for people, a rank a line, in ms a step, and a line on the straggler.
std::string describe(const StepSummary& summary);

/// Where the time of training steps goes on each rank, and which rank the others wait for. Passed
/// to DistributedDataParallel, which marks forward, backward and exchange; the program marks the
/// rest:
///
///   auto timer = std::make_shared<StepTimer>();
///   DistributedDataParallel model(net, {.step_timer = timer});
///   for (std::int64_t step = 1; step <= steps; ++step) {
///     const Batch batch = [&] { auto data = timer->phase(StepPhase::kData); return next(); }();
///     loss_of(model(batch.data), batch.target).backward();
///     { auto update = timer->phase(StepPhase::kOptimizer); optimizer.step(); }
///     if (step % 100 == 0) {
///       const StepSummary summary = timer->summarize();
///       if (rank == 0) std::cout << describe(summary);
///     }
///   }
///
/// A step costs some readings of the clock: nothing is allocated or sent. Each instant counts for
/// one phase, so that phases add up to the time since the first was marked. A step ends where its
/// gradients are exchanged. Threads: one at a time; autograd's may follow the training thread.
class StepTimer {
 public:
  StepTimer() = default;
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  /// Time counts for the phase while it lives, then for the one before. Guards nest.
  class [[nodiscard]] Guard {
   public:
    Guard(StepTimer& timer, StepPhase phase) : timer_(timer), before_(timer.enter(phase)) {}
    ~Guard() { timer_.enter(before_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    StepTimer& timer_;
    StepPhase before_;
  };
  Guard phase(StepPhase phase) { return {*this, phase}; }

  /// From now on time counts for this phase; returns the one before. The first call starts the
  /// clock.
  StepPhase enter(StepPhase phase);

  /// This rank has done its part of a step and waits for the others: enters kExchange. It arrives
  /// as much earlier as it has waited for others since the step before: what is compared is when
  /// ranks would come if none waited.
  void arrive();
  /// All ranks have: enters kOther.
  void end_step();

  /// What all ranks have noted since the last call, on every rank; then begins anew. Collective,
  /// one message of 2 kB a rank. `group`: of the model; empty: the default group. Arrivals are
  /// compared in the last 256 steps. Errors: UsageError where ranks made different numbers of
  /// steps; else as Work::wait.
  StepSummary summarize(const ProcessGroup& group = {});

 private:
  using Instant = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kArrivals = 256;

  bool is_running_ = false;
  StepPhase phase_ = StepPhase::kOther;
  Instant since_;  // when it was entered
  std::int64_t steps_ = 0;
  std::chrono::nanoseconds waited_{};  // of total_, up to the end of the step before
  std::array<std::chrono::nanoseconds, kStepPhases> total_{};
  std::array<Instant, kArrivals> arrivals_{};  // of step i at i modulo the size
};

}  // namespace lockstep
