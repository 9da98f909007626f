#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/data/loader_position.h"
#include "lockstep/train/accelerator_state.h"
#include "lockstep/train/logical_shards.h"

namespace lockstep::inline internal {

/// An Accelerator's steps with logical_shards: LogicalShards, driven by the data loader that is
/// prepared first.
/// Threads: the training thread.
/// Lifetime: `state` must outlive it.
class AcceleratorShards {
 public:
  /// Sets the number of threads of this process's operators; the destructor restores it.
  /// Errors: UsageError for options that logical_shards does not support.
  explicit AcceleratorShards(AcceleratorState& state);
  ~AcceleratorShards();
  AcceleratorShards(const AcceleratorShards&) = delete;
  AcceleratorShards& operator=(const AcceleratorShards&) = delete;

  /// Everything uses the state's group from now on. Collective, unless this process has no group.
  /// Errors: UsageError for a device other than the CPU; where ranks differ in what decides how
  /// their kernels round: on all ranks, or, once they have a group, on those that join.
  void set_group();
  /// Gives up what the step under way has summed; its buffers stay as the shards have left them.
  void give_up_step();
  /// Gives up a step whose loop was left before its end: buffers are those before the step again.
  void end_left_step();

  /// The program's loop is given this shard next.
  /// Errors: UsageError for a module with layers that communicate in forward.
  void begin_shard(const ShardPlace& place);
  /// The shard is the last of this rank in its step: its backward() makes the step complete.
  bool ends_step() const;
  /// A step has begun whose sum is still to come.
  bool is_within_step() const;
  /// The gradients are those of the complete step at which the loop is.
  bool has_sum() const { return has_sum_; }
  /// In place of loss.backward(). In the step's last shard collective: then gradients and buffers
  /// are those of the step.
  void backward(const at::Tensor& loss, std::optional<double> weight);
  /// The mean of the last complete step's losses, over all samples; NaN before the first.
  double loss() const { return loss_.item<double>(); }
  /// What decides how kernels round, as far as LibTorch tells: "name=value name=value …".
  std::string kernels() const;
  /// Warns on rank 0 where a snapshot is of a training whose kernels may round otherwise.
  void compare_kernels(const std::string& saved, const std::string& source) const;

 private:
  const LoaderPosition& position() const;
  void check_kernels();
  LogicalShards& steps();
  std::int64_t step_of_place() const;

  AcceleratorState& state_;
  const int shards_;
  const int threads_before_;
  std::optional<LogicalShards> steps_;  // of the group
  ShardPlace place_;
  bool has_shard_ = false;  // whose backward() is to come
  bool has_sum_ = false;
  bool has_met_ = false;  // Its kernels are those of a group it was in.
  at::Tensor loss_;       // registered: a recovery rolls it back and hands it to replacements
};

}  // namespace lockstep::inline internal
