#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/loader_position.h"
#include "lockstep/train/accelerator_state.h"
#include "lockstep/train/logical_shards.h"

namespace lockstep::inline internal {

/// Steps of an Accelerator with logical_shards: LogicalShards, driven by the first prepared loader.
/// Threads: call from the training thread.
/// Lifetime: `state` must outlive it.
class AcceleratorShards {
 public:
  /// Sets the number of operator threads of this process; the destructor restores it.
  /// Errors: UsageError for options that logical_shards does not support.
  explicit AcceleratorShards(AcceleratorState& state);
  ~AcceleratorShards();
  AcceleratorShards(const AcceleratorShards&) = delete;
  AcceleratorShards& operator=(const AcceleratorShards&) = delete;

  /// Switches to the state's current group. Collective, unless this process has no group.
  /// Errors: UsageError for a device other than the CPU. UsageError if ranks differ in how their
  /// kernels round: on all ranks, or, once they have a group, on the ranks that join.
  void set_group();
  /// Discards the sums of the incomplete step; buffers stay as its shards left them.
  void discard_step();
  /// If a loop was left within a step, restores the buffers from before it.
  void end_left_step();

  /// Begins a shard, before the program's loop gets its batch.
  /// Errors: UsageError for a module with layers that communicate in forward.
  void begin_shard(const ShardPlace& place);
  /// Before the loop goes on behind a batch.
  /// Errors: UsageError if the batch had no backward().
  void check_backward() const;
  /// Whether this is the rank's last shard of its step, whose backward() completes it.
  bool ends_step() const;
  /// Whether a step has begun and is not yet summed.
  bool is_within_step() const;
  /// Whether the gradients are the sum of the current step.
  bool has_sum() const { return has_sum_; }
  /// Call it in place of loss.backward(). Collective in a rank's last shard of the step, after
  /// which gradients and buffers are those of the step.
  void backward(const at::Tensor& loss, std::optional<double> weight);
  /// Before `operation` uses the gradients of these parameters, after the sum of the step.
  /// Errors: UsageError for a gradient that is not summed.
  void check_gradients(const char* operation, const std::vector<at::Tensor>& parameters) const;
  /// Mean loss over all samples of the last complete step; NaN before the first.
  double loss() const { return loss_.item<double>(); }
  /// The options that decide how kernels round, and kernel_fingerprint().
  std::string kernels() const;
  /// Warns on rank 0 if a snapshot is of a run whose kernels may round differently.
  void compare_kernels(const std::string& saved, const std::string& source) const;

 private:
  const LoaderPosition& position() const;
  void check_kernels();
  LogicalShards& steps();
  std::int64_t step_of_place() const;

  AcceleratorState& state_;
  const int shards_;
  const int threads_before_;
  std::optional<LogicalShards> steps_;  // of the group and the prepared models
  std::size_t models_ = 0;              // of steps_
  ShardPlace place_;
  bool has_sum_ = false;
  bool has_met_ = false;  // Its kernels are those of a group it was in.
  at::Tensor loss_;       // registered: a recovery rolls it back and hands it to replacements
};

}  // namespace lockstep::inline internal
