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

/// Of LogicalShards; the same on all ranks.
struct LogicalShardsOptions {
  /// Shards of a step, at least 1; the same during the whole training run.
  int shards = 1;
  /// With step and shard, the seed of LibTorch's default generators.
  std::uint64_t seed = 0;
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// .grad is a view of memory that the next end_step() writes to; otherwise it has its own.
  bool gradient_as_bucket_view = true;
};

/// How much the loss of a shard counts, which is the mean over the shard's samples.
struct ShardWeight {
  /// Samples of the shard / samples of the step. 0: the shard has no samples; its loss is ignored.
  double part_of_step = 1;
  /// Counts in place of the part, as a number of tokens: then gradients are divided by the sum of
  /// the weights. All shards of a step have one, or none has.
  std::optional<double> weight = std::nullopt;
};

/// Training steps whose bits do not depend on the number of ranks: logical_shards of Accelerator,
/// for a loop of your own.
///
///   lockstep::LogicalShards shards({net}, {.shards = 8});
///   for (std::int64_t step = 0; step < steps; ++step) {
///     optimizer.zero_grad();
///     for (const int shard : shards.own_shards()) {
///       shards.begin_shard(step, shard);
///       auto [inputs, targets] = batch_of(step, shard);         // of one size, on any rank
///       shards.backward(loss_of(net(inputs), targets), {.part_of_step = 1.0 / 8});
///     }
///     shards.end_step(step);                                   // .grad: the sum over all shards
///     optimizer.step();
///   }
///
/// A shard's gradients are those of its loss times its part of the step; they are summed along one
/// binary tree over shards (docs/guides/same-bits.md), so the result is the gradient of the mean
/// over all samples of the step. Each shard begins with random numbers of its own and with the
/// step's buffers; buffers change by the weighted mean of the changes that the shards make
/// (floating point), or by the change that shard 0 makes (integers).
///
/// Modules must have equal parameters and buffers on all ranks; DistributedDataParallel makes them
/// so. If a module is wrapped, hold no_sync() while this object lives. The number of threads of
/// operators counts too: call at::set_num_threads() with the same number on each rank.
///
/// Threads: the training thread.
/// Lifetime: keeps the modules and the group.
/// Errors: UsageError for a device other than the CPU, and layers that communicate in forward
/// (SyncBatchNorm, tensor parallelism), as ranks compute their shards one after the other.
class LogicalShards {
 public:
  LogicalShards(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                const LogicalShardsOptions& options);
  ~LogicalShards();
  LogicalShards(LogicalShards&&) noexcept;
  LogicalShards& operator=(LogicalShards&&) = delete;

  /// The shards that this rank computes, in order; none with fewer shards than ranks.
  std::vector<int> own_shards() const;

  /// Before a shard's batch is read: seeds the generators, and gives buffers the values that they
  /// had before the step. A rank's first shard gives up a step that was not ended.
  /// `step`: at least 0.
  /// `shard`: in the order of own_shards(). A rank without shards may pass the number of shards,
  /// for a batch that is ignored.
  void begin_shard(std::int64_t step, int shard);

  /// In place of loss.backward(). Gradients of an earlier step must have been given up.
  /// `loss`: one number.
  void backward(const at::Tensor& loss, const ShardWeight& weight);

  /// In place of backward(): begin_backward(), then the program's own backward passes of the loss
  /// times its part of the step (or its weight), then take_gradients().
  /// Errors: UsageError where gradients of an earlier step are left.
  void begin_backward();
  /// Adds the gradients that these passes have left to the step, and leaves none.
  void take_gradients(double loss, const ShardWeight& weight);

  /// All shards of the step are computed: gradients and buffers become those of the step, the same
  /// bits on all ranks, and the generators get one seed on all ranks. Collective.
  /// Errors: UsageError where a shard of this rank is missing, or the step is another one; as
  /// Work::wait.
  void end_step(std::int64_t step);

  /// The mean of the last complete step's losses over its samples; NaN before the first.
  double loss() const;

  /// A shard of the step under way has begun.
  bool is_within_step() const;
  /// Buffers get the values that they had before the step under way.
  void restore_buffers();
  /// Forgets the step under way. Buffers stay as its shards have left them. Call it before you load
  /// a snapshot within a step; else the next begin_shard() restores the buffers of that step.
  void give_up_step();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
