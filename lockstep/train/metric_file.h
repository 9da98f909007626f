#pragma once

#include <filesystem>

#include "lockstep/os/append_lines.h"
#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

/// metrics.jsonl of a training: a line of JSON for each set of metrics, to which each run appends,
/// {"step": 50, "epoch": 1, "samples": 3200, "seconds": 1.25, "train_loss": 0.31, …}. Values that
/// are not finite are null. Threads: one.
class MetricFile {
 public:
  /// Errors: SystemError.
  explicit MetricFile(const std::filesystem::path& folder);

  /// Errors: SystemError (disk full).
  void write(const TrainingTime& time, std::int64_t epoch, const Metrics& metrics);

 private:
  LineLog log_;
};

}  // namespace lockstep
