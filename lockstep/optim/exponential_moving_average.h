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

struct ExponentialMovingAverageOptions {
  /// What is kept of the average at each update, 0 to 1.
  double decay = 0.999;
  /// Average the buffers too (running statistics), instead of copying them at each update.
  bool use_buffers = false;
};

class AveragedWeights;

/// Keeps an exponential moving average of a module's weights, for evaluation:
/// average = decay · average + (1 - decay) · weight after each step; the first update copies.
/// The same bits as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).
///
///   ExponentialMovingAverage average(*model, {.decay = 0.999});
///   …  optimizer.step();  average.update();
///   {
///     const AveragedWeights averaged = average.apply();  // the module holds the averages …
///     evaluate(model);
///   }                                                    // … and its own weights again
///
/// Nothing is communicated: where the weights are the same on all ranks, so are the averages.
/// Threads: the training thread. Lifetime: the module must outlive it; averages lie on the devices
/// that the module is on when this is made. Errors: UsageError for a decay outside of 0 to 1.
class ExponentialMovingAverage {
 public:
  explicit ExponentialMovingAverage(const torch::nn::Module& module,
                                    const ExponentialMovingAverageOptions& options = {});

  /// Takes the weights into the average, after each step: with logical_shards if sync_gradients().
  /// Errors: UsageError while the module holds the averages.
  void update();

  /// How often update() was called.
  std::int64_t n_averaged() const { return n_averaged_; }

  /// Puts the averages into the module until the guard goes; what is done to the weights meanwhile
  /// is lost. Takes memory for the module's own weights. Errors: UsageError where they are there.
  [[nodiscard]] AveragedWeights apply();

  /// What Python's AveragedModel.state_dict() holds, by its names: "n_averaged", then "module.…".
  /// The tensors share the averages' memory.
  TensorDict state_dict() const;

  /// Takes over such a state, all or nothing. Errors: UsageError naming what differs.
  void load_state_dict(const TensorDict& values);

 private:
  friend class AveragedWeights;
  /// A parameter or buffer and its average. Handles: what the module moves elsewhere moves here.
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
  std::vector<std::pair<std::string, std::size_t>> names_;  ///< To places in entries_.
};

/// The time in which a module holds averages. Neither copied nor moved.
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
