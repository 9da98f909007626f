#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Names and defaults are those of torch.distributed's PeriodicModelAverager.
struct PeriodicModelAveragerOptions {
  /// Parameters are averaged every so many steps.
  std::int64_t period = 1;
  /// Steps before the first average.
  std::int64_t warmup_steps = 0;
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Averages parameters over all ranks from time to time: local SGD (Stich, ICLR 2019). Goes with
/// PostLocalSgdHook.
/// Threads: the training thread. Errors: from the constructor UsageError for a period that is none;
/// else as Work::wait.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// After each step of the optimizer, on every rank: averages where it is time to.
  void average_parameters(const std::vector<at::Tensor>& parameters);

 private:
  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
