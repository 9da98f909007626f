#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

namespace lockstep {

class Accelerator;

/// Options of Trainer::find_batch_size; names and defaults are those of
/// lightning.Tuner.scale_batch_size.
struct BatchSizeOptions {
  /// The first batch size; each next one is twice the one before.
  std::int64_t init_val = 2;
  /// Largest number of batch sizes to try.
  int max_trials = 25;
  /// Training steps per batch size.
  int steps_per_trial = 3;
  /// On the CPU: the fraction of the memory that is free at the start which all ranks of the
  /// machine may use. A CPU allocation beyond it would get processes killed instead of failing;
  /// CUDA reports an error.
  double memory_fraction = 0.8;
};

/// One batch size that the search has tried.
struct BatchSizeTrial {
  std::int64_t batch_size = 0;    ///< per rank
  double samples_per_second = 0;  ///< sum over ranks, without gradient exchange
  /// CPU memory beyond that in use before the first trial; maximum over ranks.
  std::int64_t memory_bytes = 0;
};

/// Result of Trainer::find_batch_size.
struct FoundBatchSize {
  /// The largest that fits into memory and into the dataset.
  std::int64_t batch_size = 0;
  std::vector<BatchSizeTrial> trials = {};  ///< those that fit
};

inline namespace internal {

/// The search behind Trainer::find_batch_size: decides which sizes to try, and collects the
/// results.
class BatchSizeSearch {
 public:
  /// Errors: UsageError for options that are not positive.
  BatchSizeSearch(const BatchSizeOptions& options, std::int64_t dataset_size,
                  const Accelerator& accelerator);

  /// The next batch size, equal on all ranks; nullopt at the end.
  std::optional<std::int64_t> next() const;
  /// Runs a trial. Collective: a device out of memory ends the search on all ranks.
  void run(const std::function<void()>& trial);

  /// Records the memory in use; call it where a trial's memory peaks.
  void note_memory();
  /// Records a completed step of so many samples; returns whether the trial needs another.
  bool needs_another_step(std::int64_t samples);

  /// Errors: UsageError if not even the first size fits.
  FoundBatchSize found() const;

 private:
  using Clock = std::chrono::steady_clock;

  BatchSizeOptions options_;
  const Accelerator& accelerator_;
  std::int64_t dataset_size_;
  double allocated_before_;
  double resident_before_;
  double free_bytes_;  ///< of one rank
  bool is_over_ = false;
  std::int64_t size_;
  FoundBatchSize found_;
  // Of the current trial:
  double most_bytes_ = 0;
  int steps_ = 0;
  double samples_ = 0;
  Clock::time_point begun_{};
};

/// Converts a result to a value, which a spawned process sends to its parent.
c10::IValue to_value(const FoundBatchSize& found);
/// Converts it back.
void from_value(const c10::IValue& value, FoundBatchSize& found);

}  // namespace internal

}  // namespace lockstep
