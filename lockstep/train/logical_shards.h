#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Options of LogicalShards; equal on all ranks.
struct LogicalShardsOptions {
  /// Shards per step, at least 1; constant for the whole training run.
  int shards = 1;
  /// Seeds LibTorch's default generators, together with step and shard.
  std::uint64_t seed = 0;
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// .grad is a view of memory that the next end_step() overwrites. False: .grad has memory of its
  /// own.
  bool gradient_as_bucket_view = true;
};

/// Weight of a shard's loss, which is the mean over the shard's samples.
struct ShardWeight {
  /// Samples of the shard / samples of the step. 0: the shard has no samples; its loss is ignored.
  double fraction_of_step = 1;
  /// Replaces fraction_of_step, for example by a number of tokens: gradients are then divided by
  /// the sum of all weights. Set it for all shards of a step or for none.
  std::optional<double> weight = std::nullopt;
};

/// Training steps whose result has the same bits on any number of ranks: the option logical_shards
/// of Accelerator, for your own loop.
///
/// ```cpp
/// lockstep::LogicalShards shards({net}, {.shards = 8});
/// for (std::int64_t step = 0; step < steps; ++step) {
///   optimizer.zero_grad();
///   for (const int shard : shards.local_shards()) {
///     shards.begin_shard(step, shard);
///     auto [inputs, targets] = batch_of(step, shard);  // does not depend on the rank
///     shards.backward(loss_of(net(inputs), targets), {.fraction_of_step = 1.0 / 8});
///   }
///   shards.end_step(step);  // .grad is the sum over all shards
///   optimizer.step();
/// }
/// ```
///
/// A shard's gradient is that of its loss × fraction_of_step. Gradients are summed along one binary
/// tree over the shards (docs/guides/same-bits.md), so the result is the gradient of the mean over
/// all samples of the step.
///
/// Each shard starts with its own random seed and with the buffers from before the step. At the end
/// of the step, floating-point buffers change by the weighted mean of the shards' changes, integer
/// buffers by the change of shard 0. A buffer whose change is not finite keeps its value.
///
/// Gradients are those of the parameters that require one when the object is made; later ones are
/// an error. Parameters and buffers must be equal on all ranks; DistributedDataParallel makes them
/// so. If a module is wrapped by it, hold no_sync() during the life of this object. The number of
/// operator threads affects the bits: call at::set_num_threads() with the same number on each rank.
///
/// Threads: call from the training thread.
/// Lifetime: keeps the modules and the group alive.
/// Errors: UsageError for a device other than the CPU, for tensor-parallel layers, and for a
/// SyncBatchNorm unless there are as many ranks as shards: ranks meet in these layers, and compute
/// their shards one after the other.
class LogicalShards {
 public:
  LogicalShards(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                const LogicalShardsOptions& options);
  ~LogicalShards();
  LogicalShards(LogicalShards&&) noexcept;
  LogicalShards& operator=(LogicalShards&&) = delete;

  /// Errors: UsageError for a device other than the CPU.
  static void check_device(const ProcessGroup& group);

  /// The shards that this rank computes, in order. Empty on some ranks if there are fewer shards
  /// than ranks.
  std::vector<int> local_shards() const;

  /// Begins a shard; call it before you read the shard's batch. Seeds the generators and restores
  /// the buffers from before the step. A rank's first shard discards an earlier step that
  /// end_step() did not complete.
  /// `step`: at least 0.
  /// `shard`: in the order of local_shards(). A rank without shards may pass the number of shards,
  /// for a batch that is ignored.
  void begin_shard(std::int64_t step, int shard);

  /// Call it in place of loss.backward(), after zero_grad(). Collective the first time, with the
  /// first end_step() of ranks without shards.
  /// `loss`: a tensor of one element.
  void backward(const at::Tensor& loss, const ShardWeight& weight);

  /// Replaces backward() together with take_gradients(). Between the two calls, run your own
  /// backward passes of the loss × fraction_of_step (or × weight). Collective the first time, as
  /// backward().
  /// Errors: UsageError if gradients of an earlier step are left.
  void begin_backward();
  /// Adds the gradients of these passes to the step's, and clears .grad.
  void take_gradients(double loss, const ShardWeight& weight);

  /// Ends the step after all its shards: gradients and buffers become those of the step, with the
  /// same bits on all ranks. Seeds the generators equally on all ranks. Collective.
  /// Errors: UsageError if a shard of this rank is missing, or for another step number than that of
  /// its shards or of another rank; else as Work::wait.
  void end_step(std::int64_t step);

  /// Whether a shard without samples also needs its forward and backward passes, because all ranks
  /// meet in them (SyncBatchNorm): a backward pass of the loss times 0.
  bool needs_every_backward() const;

  /// Mean loss over the samples of the last complete step; NaN before the first.
  double loss() const;

  /// Whether the parameter's gradient is summed: it required one when this object was made.
  bool sums(const at::Tensor& parameter) const;
  /// Whether a shard of an incomplete step has begun.
  bool is_within_step() const;
  /// Whether a shard has begun whose backward() has not been called.
  bool is_within_shard() const;
  /// Restores the buffers from before the incomplete step.
  void restore_buffers();
  /// Discards the incomplete step. Buffers stay as its shards left them. Call it before you load a
  /// snapshot within a step; else the next begin_shard() restores the buffers of that step.
  void discard_step();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
