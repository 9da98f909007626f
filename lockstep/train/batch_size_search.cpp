#include "lockstep/train/batch_size_search.h"

#include <algorithm>
#include <tuple>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/process_usage.h"
#include "lockstep/train/accelerator.h"

namespace lockstep {
namespace {

// Of malloc, which may keep what is freed for what comes next: that is resident, but free.
double allocated_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

double resident_bytes() {
  const auto usage = process_usage(::getpid());
  return usage ? static_cast<double>(usage->resident_bytes) : 0;
}

}  // namespace

BatchSizeSearch::BatchSizeSearch(const BatchSizeOptions& options, std::int64_t dataset_size,
                                 const Accelerator& accelerator)
    : options_(options),
      accelerator_(accelerator),
      dataset_size_(dataset_size),
      allocated_before_(allocated_bytes()),
      resident_before_(resident_bytes()),
      free_bytes_(static_cast<double>(available_memory_bytes()) * options.memory_fraction /
                  env::integer(env::kLocalWorldSize).value_or(1)),
      size_(options.init_val) {
  if (options.init_val < 1 || options.max_trials < 1 || options.steps_per_trial < 1 ||
      !(options.memory_fraction > 0)) {
    throw UsageError(
        "Trainer::find_batch_size: init_val, max_trials, steps_per_trial and memory_fraction must "
        "be positive");
  }
}

std::optional<std::int64_t> BatchSizeSearch::next() const {
  if (is_over_) return std::nullopt;
  return size_;
}

void BatchSizeSearch::run(const std::function<void()>& trial) {
  most_bytes_ = 0;
  steps_ = 0;
  samples_ = 0;
  bool fits = true;
  begun_ = Clock::now();
  try {
    trial();
  } catch (const c10::OutOfMemoryError&) {
    fits = false;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
  const double taken = most_bytes_;
  // Twice the size takes at most as much again.
  const bool next_fits = fits && 2 * taken <= free_bytes_;
  const at::Tensor own = at::tensor(
      {fits ? 1.0 : 0.0, next_fits ? 1.0 : 0.0, taken, seconds > 0 ? samples_ / seconds : 0},
      at::kDouble);
  BatchSizeTrial all{.batch_size = size_};
  for (const at::Tensor& rank : gather_from_all(accelerator_.process_group(), own)) {
    const double* const values = rank.const_data_ptr<double>();
    fits = fits && values[0] > 0;
    is_over_ = is_over_ || !(values[1] > 0);
    all.memory_bytes = std::max(all.memory_bytes, static_cast<std::int64_t>(values[2]));
    all.samples_per_second += values[3];
  }
  if (fits) {
    found_.batch_size = size_;
    found_.trials.push_back(all);
  }
  const int trials = static_cast<int>(found_.trials.size());
  const std::int64_t per_rank = dataset_size_ / accelerator_.num_processes();
  size_ *= 2;
  is_over_ = is_over_ || trials >= options_.max_trials || size_ > per_rank;
}

void BatchSizeSearch::note_memory() {
  most_bytes_ = std::max(
      {most_bytes_, allocated_bytes() - allocated_before_, resident_bytes() - resident_before_});
}

bool BatchSizeSearch::needs_another_step(std::int64_t samples) {
  note_memory();
  samples_ += static_cast<double>(samples);
  // What a first step has to prepare says nothing of the others.
  if (++steps_ == 1 && options_.steps_per_trial > 1) {
    samples_ = 0;
    begun_ = Clock::now();
  }
  return steps_ < options_.steps_per_trial;
}

FoundBatchSize BatchSizeSearch::found() const {
  if (found_.batch_size == 0) {
    throw UsageError(concat("Trainer::find_batch_size: not even ", options_.init_val,
                            " samples fit into memory; choose a smaller init_val or model"));
  }
  return found_;
}

c10::IValue internal::to_value(const FoundBatchSize& found) {
  c10::List<std::int64_t> sizes;
  c10::List<double> speeds;
  c10::List<std::int64_t> memory;
  for (const BatchSizeTrial& trial : found.trials) {
    sizes.push_back(trial.batch_size);
    speeds.push_back(trial.samples_per_second);
    memory.push_back(trial.memory_bytes);
  }
  return std::tuple(found.batch_size, sizes, speeds, memory);
}

void internal::from_value(const c10::IValue& value, FoundBatchSize& found) {
  const auto& parts = value.toTupleRef().elements();
  found.batch_size = parts[0].toInt();
  for (std::size_t i = 0; i < parts[1].toIntList().size(); ++i) {
    found.trials.push_back({.batch_size = parts[1].toIntList().get(i),
                            .samples_per_second = parts[2].toDoubleList().get(i),
                            .memory_bytes = parts[3].toIntList().get(i)});
  }
}

}  // namespace lockstep
