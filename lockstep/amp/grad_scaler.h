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

/// Options of GradScaler; names and defaults are those of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;  ///< factor of the scale after growth_interval steps without overflow
  double backoff_factor = 0.5;  ///< factor of the scale after a step with overflow
  std::int64_t growth_interval = 2000;
  /// False: scale() and step() act as without a scaler.
  bool enabled = true;
  /// For ranks with different gradients, as of a model sharded over ranks, or of replicas without
  /// DistributedDataParallel: an overflow on any rank skips the step on all of them. Empty: each
  /// rank decides by itself. That is enough for DistributedDataParallel, also with
  /// ShardedOptimizer, since averaged gradients have the same bits on every rank.
  ProcessGroup process_group = {};
};

/// Loss scaling: keeps small float16 gradients from becoming zero. It multiplies the loss by a
/// scale and divides the gradients by it before the optimizer steps. It skips steps with an
/// overflow, and adapts the scale.
///
/// ```cpp
/// lockstep::GradScaler scaler;
/// …
/// optimizer.zero_grad();
/// scaler.scale(loss).backward();
/// scaler.unscale_(optimizer);  // only if you use gradients before the step
/// torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
/// scaler.step(optimizer);
/// scaler.update();
/// …
/// snapshot.extra = scaler.state_dict();
/// ```
///
/// DistributedDataParallel's gradient_norm() is of the scaled gradients: divide it by get_scale().
/// With a process group, and with one_copy_per_machine, unscale_() and step() are collective.
///
/// Source: "Mixed Precision Training" (Micikevicius et al., ICLR 2018).
/// Threads: one.
/// Errors: UsageError for invalid options and for calls out of order; with a process group as
/// Work::wait.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns `outputs` × scale.
  at::Tensor scale(const at::Tensor& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, and checks them for
  /// infinities and NaN. Call it at most once between two update(); step() calls it if you did not.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Steps the optimizer unless a gradient has overflowed; returns whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends an iteration: lowers the scale if the step of any optimizer was skipped, raises it after
  /// growth_interval iterations without overflow; or sets it to `new_scale`.
  void update(std::optional<double> new_scale = std::nullopt);

  /// The scale; 1 if disabled.
  double get_scale() const;
  /// Iterations without overflow since the scale last changed.
  std::int64_t get_growth_tracker() const;
  /// Whether this scaler is enabled.
  bool is_enabled() const { return options_.enabled; }

  /// State of torch.amp.GradScaler.state_dict(), as tensors without dimensions named
  /// "grad_scaler.…"; empty if disabled. Call it between update() and the next scale().
  TensorDict state_dict() const;
  /// Loads its state from `values`, which may hold other tensors; does nothing if disabled.
  /// Errors: UsageError if a value is missing.
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
