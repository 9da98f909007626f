#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/state_dict.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Options of ExponentialMovingAverage.
struct ExponentialMovingAverageOptions {
  /// Factor of the average at each update, 0 to 1.
  double decay = 0.999;
  /// Average buffers (running statistics) too, instead of copying them at each update.
  bool use_buffers = false;
};

class AveragedWeights;

/// Keeps an exponential moving average of a module's weights for evaluation: average = decay ·
/// average + (1 - decay) · weight after each step; the first update copies. Gives the bits of
/// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).
///
///     ExponentialMovingAverage average(*model, {.decay = 0.999});
///     …  optimizer.step();  average.update();
///     {
///       const AveragedWeights averaged = average.apply();  // the module holds the averages …
///       evaluate(model);
///     }                                                    // … and its own weights again
///
/// Nothing is communicated: if the weights are equal on all ranks, so are the averages.
/// Threads: call from the training thread.
/// Lifetime: the module must outlive it; the averages stay on the module's devices at construction.
/// Errors: UsageError for a decay outside 0 to 1.
class ExponentialMovingAverage {
 public:
  explicit ExponentialMovingAverage(const torch::nn::Module& module,
                                    const ExponentialMovingAverageOptions& options = {});

  /// Adds the weights to the average. Call it after each step; with logical_shards if
  /// sync_gradients().
  /// Errors: UsageError while the module holds the averages.
  void update();

  /// Number of update() calls.
  std::int64_t n_averaged() const { return n_averaged_; }

  /// Puts the averages into the module until the returned guard is destroyed, which restores the
  /// weights and discards changes to the averages in the module. Needs memory for a copy of the
  /// weights.
  /// Errors: UsageError if the module already holds the averages.
  [[nodiscard]] AveragedWeights apply();

  /// The state dict of Python's AveragedModel: "n_averaged", then "module.…". The tensors share the
  /// averages' memory.
  TensorDict state_dict() const;

  /// Loads such a state completely, or throws and changes nothing.
  /// Errors: UsageError with what differs.
  void load_state_dict(const TensorDict& values);

 private:
  friend class AveragedWeights;
  /// A parameter or buffer and its average. Handles: if the module moves a tensor, the entry
  /// follows.
  struct Entry {
    at::Tensor weight;
    at::Tensor average;
    bool is_buffer;
  };

  double decay_;
  bool use_buffers_;
  std::int64_t n_averaged_ = 0;
  bool applied_ = false;
  std::vector<Entry> entries_;  ///< Each tensor once, however many names it has.
  std::vector<std::pair<std::string, std::size_t>> names_;  ///< Index in entries_.
};

/// Guard of ExponentialMovingAverage::apply(): the module holds the averages while it lives.
class AveragedWeights {
 public:
  explicit AveragedWeights(ExponentialMovingAverage& average);
  ~AveragedWeights();
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

 private:
  ExponentialMovingAverage& average_;
  std::vector<at::Tensor> own_;
};

}  // namespace lockstep
