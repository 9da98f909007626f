#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Names and defaults are those of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   ///< Of the scale, after growth_interval steps without overflow.
  double backoff_factor = 0.5;  ///< Of the scale, after a step with one.
  std::int64_t growth_interval = 2000;
  /// False: scale() and step() do what they would without a scaler.
  bool enabled = true;
  /// Where ranks hold different gradients, one that overflows on any rank skips the step on all:
  /// with a module spread over ranks, or replicas without DistributedDataParallel. Empty: each rank
  /// decides by its own, which is enough for DistributedDataParallel, with ShardedOptimizer too:
  /// its averaged gradients are the same bits on every rank.
  ProcessGroup process_group = {};
};

/// Keeps small float16 gradients from vanishing: multiplies the loss by a large number, divides the
/// gradients by it before the optimizer steps, skips the step where one has overflowed, and adapts
/// the number. After "Mixed Precision Training" (Micikevicius et al., ICLR 2018).
///
///   lockstep::GradScaler scaler;
///   …
///   optimizer.zero_grad();
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);            // only where gradients are looked at before the step:
///   torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
///   scaler.step(optimizer);
///   scaler.update();
///   …
///   snapshot.extra = scaler.state_dict();
///
/// DistributedDataParallel's gradient_norm() is that of the scaled gradients: divide it by
/// get_scale(). Threads: one. With a process group, and with one_copy_per_machine, unscale_ and
/// step are collective.
/// Errors: UsageError for options that cannot work and for calls out of order; as Work::wait with a
/// process group.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `outputs` times the scale.
  at::Tensor scale(const at::Tensor& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, and looks for infinities and
  /// NaN. At most once between two update(); step() does it where it was not done.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Lets the optimizer step unless a gradient has overflowed. Returns whether it did.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends an iteration: lowers the scale if any optimizer's step was skipped, raises it after
  /// growth_interval iterations without; or sets it to `new_scale`.
  void update(std::optional<double> new_scale = std::nullopt);

  /// 1 where disabled.
  double get_scale() const;
  /// Iterations without overflow since the scale last changed.
  std::int64_t get_growth_tracker() const;
  bool is_enabled() const { return options_.enabled; }

  /// What torch.amp.GradScaler.state_dict() holds, as tensors of no dimension, each name after
  /// "grad_scaler."; nothing where disabled. To be taken between update() and the next scale().
  TensorDict state_dict() const;
  /// Takes its own out of `values`, which may hold more; nothing where disabled.
  /// Errors: UsageError where one is missing.
  void load_state_dict(const TensorDict& values);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    bool found_inf = false;
  };

  GradScalerOptions options_;
  at::Tensor scale_;           // float32, no dimension, on the CPU
  at::Tensor growth_tracker_;  // int32, likewise
  bool has_scaled_ = false;
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;  // since update()
};

}  // namespace lockstep
