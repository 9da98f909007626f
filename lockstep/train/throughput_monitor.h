#pragma once

#include <cstdint>

#include "lockstep/train/callback.h"

namespace lockstep {

struct ThroughputMonitorOptions {
  /// Of a task over text; 0: there are none.
  std::int64_t tokens_per_sample = 0;
};

/// Adds what torchtitan logs to the training's metrics, beside train_loss and samples_per_second:
///
///   grad_norm          of the newest step's gradients, where the Trainer does not log it: it does
///                      where it clips by norm, as they are before
///   memory_gib         of the rank that has most: what is reserved of its CUDA device at the most,
///                      or its resident memory on the CPU
///   memory_percent     of that device, or machine
///   tokens_per_second  with tokens_per_sample
///
/// Costs one reduction of 16 bytes each time that metrics are logged, and one pass over the
/// gradients. Errors: as Work::wait.
class ThroughputMonitor : public Callback {
 public:
  explicit ThroughputMonitor(const ThroughputMonitorOptions& options = {}) : options_(options) {}
  void on_log(TrainerState& state, Metrics& metrics) override;

 private:
  ThroughputMonitorOptions options_;
};

}  // namespace lockstep
