// What a TrainerLoop measures, and how it is written.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/train/internal/metric_file.h"
#include "lockstep/train/internal/write_on_main.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
namespace {

// How soon a training is to notice that it is preempted.
constexpr double kAsksAfterSeconds = 0.02;
constexpr double kLeastSeconds = 1e-6;  // of a clock that stands still

}  // namespace

void TrainerLoop::log_metrics() {
  std::array<double, 2> seconds = {seconds_before_ + seconds_since(begun_), seconds_aside_};
  Metrics metrics;
  Metrics phases;
  run_on_survivors([&] {
    MetricMeans means = means_;
    // A replacement has not seen the steps since the last line.
    const bool has_new_ranks = accelerator_.recoveries() > 0;
    metrics = means.take_means(accelerator_.process_group(), seconds, has_new_ranks);
    const Metrics of_shards = means_of_shards();
    metrics.insert(metrics.end(), of_shards.begin(), of_shards.end());
    refuse_non_finite(metrics);
    phases.clear();
    if (timer_) add_phases(phases);
  });
  means_ = {};
  sums_of_shards_.zero_();
  const double before = std::exchange(state_.time.seconds, seconds[0]);
  const double aside = seconds[1] - std::exchange(logged_seconds_aside_, seconds[1]);
  const double took = std::max(state_.time.seconds - before - aside, kLeastSeconds);
  const auto samples = static_cast<double>(state_.time.samples - logged_samples_);
  metrics.emplace_back("samples_per_second", samples / took);
  const auto steps = static_cast<double>(state_.time.batches - logged_at_);
  asks_every_ =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kAsksAfterSeconds * steps / took));
  logged_at_ = state_.time.batches;
  logged_samples_ = state_.time.samples;
  metrics.insert(metrics.end(), phases.begin(), phases.end());
  tell([&](Callback& one) { write_out([&] { one.on_log(state_, metrics); }); });
  set_metrics(state_.metrics, metrics);
  write_out([&] { write_metrics(metrics); });
}

// Another rank than at the beginning may be the one that writes.
void TrainerLoop::write_metrics(const Metrics& metrics) {
  if (!saves()) return;
  write_on_main(accelerator_, [&] {
    if (!file_) file_ = std::make_unique<MetricFile>(options_.directory);
    const std::int64_t recoveries = accelerator_.recoveries();
    const bool has_recovered = std::exchange(written_recoveries_, recoveries) != recoveries;
    if (has_recovered) recovered_step_ = state_.time.batches;
    const bool may_be_there = recovered_step_ == state_.time.batches;
    if (may_be_there && file_->ends_with(state_.time, metrics)) return;
    file_->write(state_.time, state_.epoch, metrics);
  });
}

template <class Function>
void TrainerLoop::write_out(Function&& function) {
  try {
    function();
  } catch (const SystemError&) {
    if (!write_error_) write_error_ = std::current_exception();
  }
  has_written_ = true;  // Behind what may call refresh().
}

// State first. On all ranks as often.
void TrainerLoop::end_where_metrics_are_lost() {
  if (!std::exchange(has_written_, false)) return;
  const at::Tensor own = at::scalar_tensor(write_error_ ? 1 : 0, at::kInt);
  std::vector<at::Tensor> all;
  run_on_survivors([&] { all = gather_from_all(accelerator_.process_group(), own); });
  const auto failed =
      std::ranges::find_if(all, [](const at::Tensor& one) { return one.item<int>() != 0; });
  if (failed == all.end()) return;
  if (saves() && saved_at_ != state_.time.batches) save();
  accelerator_.wait_for_saves();
  if (write_error_) std::rethrow_exception(write_error_);
  const auto rank = static_cast<int>(failed - all.begin());
  throw PeerFailed(
      {.operation = "write metrics", .ranks = {rank}},
      concat("failed on rank ", rank, "; see the message there; the training's state is saved"));
}

// Of a step, the mean over ranks.
void TrainerLoop::add_phases(Metrics& metrics) {
  const StepSummary summary = timer_->summarize(accelerator_.process_group());
  for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
    std::chrono::duration<double, std::milli> sum{};
    for (const StepSummary::Rank& rank : summary.ranks) sum += rank.mean.at(phase);
    metrics.emplace_back(concat(name_of(static_cast<StepPhase>(phase)), "_ms"),
                         sum.count() / static_cast<double>(summary.ranks.size()));
  }
}

void TrainerLoop::validate() {
  if (has_means()) log_metrics();  // Which a loss that is not finite ends.
  const Clock::time_point began = Clock::now();
  tell([&](Callback& one) { one.on_validation_start(state_); });
  const Metrics metrics = accelerator_.evaluate(data_.validate);
  set_metrics(state_.metrics, metrics);
  for (auto one = callbacks_.rbegin(); one != callbacks_.rend(); ++one) {
    write_out([&] { (*one)->on_validation_end(state_, metrics); });
  }
  write_out([&] { write_metrics(metrics); });
  seconds_aside_ += seconds_since(began);
}

}  // namespace lockstep
