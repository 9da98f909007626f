#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

namespace lockstep {

class Accelerator;

/// Names and defaults are those of lightning.Tuner.scale_batch_size.
struct BatchSizeOptions {
  /// The first size that is tried; each further one is twice the one before.
  std::int64_t init_val = 2;
  int max_trials = 25;
  /// Steps of training on each size.
  int steps_per_trial = 3;
  /// How much of the memory that is free at the beginning, on the CPU, may be taken by all ranks of
  /// the machine: the system would end them, rather than tell them that there is no more. CUDA does
  /// tell.
  double memory_fraction = 0.8;
};

struct BatchSizeTrial {
  std::int64_t batch_size = 0;    ///< on each rank
  double samples_per_second = 0;  ///< of all ranks, without their exchange
  /// Taken beyond what was before the first trial, by the rank that took the most; on the CPU.
  std::int64_t memory_bytes = 0;
};

struct FoundBatchSize {
  /// The largest that fits: of the dataset, too.
  std::int64_t batch_size = 0;
  std::vector<BatchSizeTrial> trials = {};  ///< that fitted
};

/// The search of Trainer::find_batch_size: which sizes to try, and what was found.
class BatchSizeSearch {
 public:
  /// Errors: UsageError for options that cannot work.
  BatchSizeSearch(const BatchSizeOptions& options, std::int64_t dataset_size,
                  const Accelerator& accelerator);

  /// The next size, the same on all ranks; nothing at the end.
  std::optional<std::int64_t> next() const;
  /// Collective; a device whose memory is short ends the search on all ranks.
  void run(const std::function<void()>& trial);

  /// While a trial runs: memory is at its most, and whether another step is to be made.
  void note_memory();
  bool goes_on(std::int64_t samples);

  /// Errors: UsageError where not even the first size fits.
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
  // Of a trial:
  double most_bytes_ = 0;
  int steps_ = 0;
  double samples_ = 0;
  Clock::time_point begun_{};
};

// What a process hands to the one that started it.
c10::IValue to_value(const FoundBatchSize& found);
void from_value(const c10::IValue& value, FoundBatchSize& found);

}  // namespace lockstep
