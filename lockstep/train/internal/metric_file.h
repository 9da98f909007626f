#pragma once

#include <filesystem>

#include "lockstep/os/files/append_lines.h"
#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep::inline internal {

/// Writes metrics.jsonl of a training run: one line of JSON per set of metrics, appended by each
/// run: {"step": 50, "epoch": 1, "samples": 3200, "seconds": 1.25, "train_loss": 0.31, …}. Values
/// that are not finite are null. A resumed run starts with {"step": 40, …, "resumed": true}:
/// earlier lines of later steps are void.
/// Threads: one.
class MetricFile {
 public:
  /// Errors: SystemError.
  explicit MetricFile(const std::filesystem::path& folder);

  /// Whether the last lines, those of this step, hold the same metrics.
  /// Errors: SystemError.
  bool ends_with(const TrainingTime& time, const Metrics& metrics) const;

  /// Starts a run at this position.
  /// Errors: SystemError (disk full).
  void begin_run(const TrainingTime& time, std::int64_t epoch);

  /// Appends a set of metrics.
  /// Errors: SystemError (disk full).
  void write(const TrainingTime& time, std::int64_t epoch, const Metrics& metrics);

 private:
  std::filesystem::path path_;
  LineLog log_;
  bool has_earlier_runs_;
};

}  // namespace lockstep::inline internal
