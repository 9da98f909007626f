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

/// Phases of a training step.
enum class StepPhase : std::uint8_t {
  kData,       ///< loading a batch
  kForward,    ///< the model's forward
  kBackward,   ///< from the end of forward to the end of autograd; includes the loss
  kExchange,   ///< waiting for gradients and buffers, as far as backward did not overlap it
  kOptimizer,  ///< the optimizer's step
  kOther,      ///< everything else
};
inline constexpr std::size_t kStepPhases = 6;

/// "data", "forward", "backward", "exchange", "optimizer" or "other".
const char* name_of(StepPhase phase);

/// Time of the phases of some steps, on all ranks.
struct StepSummary {
  /// A duration.
  using Time = std::chrono::nanoseconds;
  /// Times of one rank.
  struct Rank {
    std::array<Time, kStepPhases> mean{};  ///< per step, by StepPhase
    /// Number of compared steps in which this rank arrived last at the exchange.
    std::int64_t arrived_last = 0;
    /// Mean time between its arrival and the last one.
    Time ahead{};
  };
  std::int64_t steps = 0;
  std::vector<Rank> ranks = {};
  /// Number of compared steps; 0 if ranks have different clocks, as on several machines.
  std::int64_t arrivals_compared = 0;
  /// The rank that the others wait for: the last to arrive, by the mean over steps. If ranks have
  /// different clocks, the rank that waits least in the exchange. nullopt for one rank or no steps.
  std::optional<int> straggler = std::nullopt;
  /// Time per step that the other ranks wait for it, in the mean over these ranks.
  Time straggler_delay{};
};

/// Table for people: one line per rank, in ms per step, and a line about the straggler.
std::string describe(const StepSummary& summary);

/// Measures how long each rank spends in the phases of a step, and which rank the others wait for.
/// DistributedDataParallel marks forward, backward and exchange; the program marks the others:
///
/// ```cpp
/// auto timer = std::make_shared<StepTimer>();
/// DistributedDataParallel model(net, {.step_timer = timer});
/// for (std::int64_t step = 1; step <= steps; ++step) {
///   const Batch batch = [&] { auto data = timer->phase(StepPhase::kData); return next(); }();
///   loss_of(model(batch.data), batch.target).backward();
///   { auto update = timer->phase(StepPhase::kOptimizer); optimizer.step(); }
///   if (step % 100 == 0) {
///     const StepSummary summary = timer->summarize();
///     if (rank == 0) std::cout << describe(summary);
///   }
/// }
/// ```
///
/// A step costs a few clock readings; nothing is allocated or sent. Every instant belongs to one
/// phase, so phases add up to the time since the first mark. A step ends when its gradients are
/// exchanged.
///
/// Threads: one at a time; autograd's thread may take turns with the training thread.
class StepTimer {
 public:
  StepTimer() = default;
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  /// Marks a phase during its life, then the phase before. Guards nest.
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
  /// Marks a phase during the life of the guard.
  Guard phase(StepPhase phase) { return {*this, phase}; }

  /// Starts a phase; returns the one before. The first call starts the clock.
  StepPhase enter(StepPhase phase);

  /// Marks that this rank's part of a step is complete and it waits for the others: enters
  /// kExchange. Its time of arrival is corrected by the time that it has waited since the previous
  /// step: arrivals are compared as if no rank had waited.
  void arrive();
  /// Marks that all ranks have arrived: enters kOther.
  void end_step();

  /// Gathers the times of all ranks since the last call, on every rank, and starts anew.
  /// Collective, with one message of 2 kB per rank. Arrivals are compared in the last 256 steps.
  /// `group`: the model's; empty: the default group.
  /// Errors: UsageError if ranks made different numbers of steps; else as Work::wait.
  StepSummary summarize(const ProcessGroup& group = {});

 private:
  using Instant = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kArrivals = 256;

  bool is_running_ = false;
  StepPhase phase_ = StepPhase::kOther;
  Instant since_;  // when it was entered
  std::int64_t steps_ = 0;
  std::chrono::nanoseconds waited_{};  // in kExchange, up to the end of the previous step
  std::array<std::chrono::nanoseconds, kStepPhases> total_{};
  std::array<Instant, kArrivals> arrivals_{};  // of step i at i modulo the size
};

}  // namespace lockstep
