#pragma once

#include <filesystem>

#include "lockstep/os/files/append_lines.h"
#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep::inline internal {

/// metrics.jsonl of a training: a line of JSON for each set of metrics, to which each run appends,
/// {"step": 50, "epoch": 1, "samples": 3200, "seconds": 1.25, "train_loss": 0.31, …}. Values that
/// are not finite are null. A run that goes on begins with a line {"step": 40, …, "resumed": true}:
/// earlier lines of later steps are of steps that were lost. Threads: one.
class MetricFile {
 public:
  /// Errors: SystemError.
  explicit MetricFile(const std::filesystem::path& folder);

  /// Whether one of the last lines, those of this step, has the same metrics. Errors: SystemError.
  bool ends_with(const TrainingTime& time, const Metrics& metrics) const;

  /// A run begins there. Errors: SystemError (disk full).
  void begin_run(const TrainingTime& time, std::int64_t epoch);

  /// Errors: SystemError (disk full).
  void write(const TrainingTime& time, std::int64_t epoch, const Metrics& metrics);

 private:
  std::filesystem::path path_;
  LineLog log_;
  bool has_earlier_runs_;
};

}  // namespace lockstep::inline internal
