#include "bench/all_reduce/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/all_reduce/exactness.h"
#include "bench/all_reduce/progress.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A reading of the clock takes 30 ns: short calls are timed several at a time.
constexpr double kShortestTimingUs = 20;
constexpr int kFewestTimings = 3;
constexpr int kMostTimings = 2000;

// How often to call in one sample; the same on all ranks.
struct SamplePlan {
  int timings = kFewestTimings;
  int calls_per_timing = 1;
};

double elapsed_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

SamplePlan plan_sample(double call_us, const BenchOptions& options) {
  SamplePlan plan;
  if (!options.fresh) {
    plan.calls_per_timing = std::max(1, static_cast<int>(std::ceil(kShortestTimingUs / call_us)));
  }
  const double timing_us = call_us * plan.calls_per_timing;
  plan.timings = std::clamp(static_cast<int>(options.sample_ms * 1e3 / timing_us), kFewestTimings,
                            kMostTimings);
  return plan;
}

class Measurement {
 public:
  Measurement(const Control& control, const BenchOptions& options, const Cpus& cpus,
              const std::vector<std::unique_ptr<SubjectCall>>& calls)
      : control_(control),
        options_(options),
        cpus_(cpus),
        calls_(calls),
        progress_(control.rank(),
                  static_cast<int>(options.sizes.size() * calls.size()) * (options.rounds + 1)) {}

  Measurements run();

 private:
  void check_and_plan();
  SamplePlan plan_for(SubjectCall& call);
  Placement distance();
  std::vector<double> time(SubjectCall& call, const SamplePlan& plan);
  std::size_t cell(std::size_t size, std::size_t subject) const {
    return size * calls_.size() + subject;
  }

  const Control& control_;
  const BenchOptions& options_;
  const Cpus cpus_;
  const std::vector<std::unique_ptr<SubjectCall>>& calls_;
  Progress progress_;
  std::vector<SamplePlan> plans_;  // by cell
  Measurements result_;
};

Measurements Measurement::run() {
  check_and_plan();
  for (int round = 0; round < options_.rounds; ++round) {
    for (std::size_t size = 0; size < options_.sizes.size(); ++size) {
      Placement before = distance();
      for (std::size_t subject = 0; subject < calls_.size(); ++subject) {
        SubjectCall& call = *calls_[subject];
        progress_.step(concat(options_.sizes[size], " bytes over ", call.subject().name, ", round ",
                              round + 1, " of ", options_.rounds));
        call.set_bytes(options_.sizes[size]);
        Sample sample{.subject = subject, .bytes = options_.sizes[size], .before = before};
        sample.call_us = time(call, plans_[cell(size, subject)]);
        sample.after = before = distance();
        result_.samples.push_back(std::move(sample));
      }
    }
  }
  return std::move(result_);
}

void Measurement::check_and_plan() {
  for (const std::int64_t bytes : options_.sizes) {
    for (const auto& call : calls_) {
      progress_.step(concat("checking ", bytes, " bytes over ", call->subject().name));
      check_sums(control_, *call, bytes);
      plans_.push_back(plan_for(*call));
    }
  }
}

SamplePlan Measurement::plan_for(SubjectCall& call) {
  constexpr int kCalls = 3;
  const auto start = Clock::now();
  for (int i = 0; i < kCalls; ++i) call.call();
  SamplePlan plan = plan_sample(std::max(0.01, control_.max(elapsed_us(start) / kCalls)), options_);
  // Ranks that share a processor and do not wait for each other run one after the other, and hardly
  // any timing would see that: only all calls together do.
  if (call.subject().is_limit && control_.ranks() > cpus_.count && !options_.fresh) {
    plan = {.timings = 1, .calls_per_timing = plan.timings * plan.calls_per_timing};
  }
  return plan;
}

// The other ranks sleep in the barrier meanwhile.
Placement Measurement::distance() {
  Placement placement = Placement::kUnknown;
  if (control_.rank() == 0) {
    const CoreDistance now = measure_core_distance(cpus_.first, cpus_.second);
    placement = now.placement;
    if (placement != Placement::kUnknown) {
      const bool first = result_.round_trip_ns_max == 0;
      result_.round_trip_ns_min =
          first ? now.round_trip_ns : std::min(result_.round_trip_ns_min, now.round_trip_ns);
      result_.round_trip_ns_max = std::max(result_.round_trip_ns_max, now.round_trip_ns);
    }
  }
  control_.barrier();
  return placement;
}

std::vector<double> Measurement::time(SubjectCall& call, const SamplePlan& plan) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(plan.timings));
  control_.barrier();
  call.call();
  for (int timing = 0; timing < plan.timings; ++timing) {
    // The value differs from turn to turn, and its sum stays far from what float32 cannot hold.
    if (options_.fresh) std::ranges::fill(call.values(), static_cast<float>(timing));
    const auto start = Clock::now();
    for (int i = 0; i < plan.calls_per_timing; ++i) call.call();
    times.push_back(elapsed_us(start) / plan.calls_per_timing);
  }
  return control_.max(std::move(times));
}

}  // namespace

Measurements measure(const Control& control, const BenchOptions& options, const Cpus& cpus,
                     const std::vector<std::unique_ptr<SubjectCall>>& calls) {
  return Measurement(control, options, cpus, calls).run();
}

}  // namespace lockstep::bench
