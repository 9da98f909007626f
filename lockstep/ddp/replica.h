#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel_options.h"
#include "lockstep/ddp/exchange_report.h"
#include "lockstep/ddp/replica_check.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

inline namespace internal {
class CopyMemory;
class GradientReducer;
class OneCopyGradients;
class ReplicaState;
}  // namespace internal

class NoSyncGuard;

/// Options of DistributedDataParallel::backward.
struct WeightedBackwardOptions {
  /// Weight of this loss relative to other ranks and other backward passes: the number of samples
  /// or tokens of which it is the mean. 0 or more; 0: the pass adds nothing.
  double weight = 1;
  /// See Tensor::backward.
  bool retain_graph = false;
  /// See Tensor::backward.
  bool create_graph = false;
};

inline namespace internal {

/// Makes a module a replica of rank 0's and keeps it one: the part of DistributedDataParallel that
/// is independent of the module's type.
/// Threads: as DistributedDataParallel.
/// Lifetime: as DistributedDataParallel.
/// Errors: as DistributedDataParallel.
class Replica {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// See ReplicaState.
  void set_buffers(const std::vector<NamedTensor>& buffers);
  /// Before the module's forward: checks parameters, compares replicas if due, copies rank 0's
  /// buffers.
  /// Errors: UsageError if the last backward pass failed, and for parameters that were frozen,
  /// unfrozen, or moved to another dtype or device.
  void before_forward();
  /// After the module's forward.
  void after_forward();
  /// Whether the caller must pass the outputs of forward to add_outputs().
  bool finds_unused_parameters() const { return options_.find_unused_parameters; }
  /// Finds the parameters that these outputs depend on, for find_unused_parameters.
  void add_outputs(const std::vector<at::Tensor>& outputs);

  /// See DistributedDataParallel::backward.
  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options);

  /// Sends `vote` and `has_data` with the next exchange of gradients. See BatchVote.
  void cast_vote(bool has_data, int vote);
  /// Ends cast_vote(). Returns the highest vote of all ranks; empty if no gradients were exchanged
  /// since.
  std::optional<int> withdraw_vote();
  /// If false, backward passes add nothing to gradients, even if they are NaN.
  void set_has_data(bool has_data);
  /// Discards the backward passes since the last exchange, with their weights.
  void discard_passes();

  /// See DistributedDataParallel. `optimizer` may be null.
  void check_replicas_agree(const torch::optim::Optimizer* optimizer) const;
  /// See DistributedDataParallel.
  void check_replicas_with(const torch::optim::Optimizer& optimizer) { optimizer_ = &optimizer; }

  /// The module's parameters, without the ignored ones.
  std::vector<at::Tensor> parameters() const;
  /// See DistributedDataParallel.
  double gradient_norm() const;
  /// See DistributedDataParallel.
  std::vector<at::Tensor> averaged_gradients();
  /// See DistributedDataParallel.
  std::vector<BucketLayout> bucket_layout() const;
  /// See DistributedDataParallel.
  ExchangeReport exchange_report() const;
  /// The group over which gradients are averaged.
  const ProcessGroup& process_group() const { return group_; }

 private:
  friend class lockstep::NoSyncGuard;
  bool has_one_copy() const;
  void make_reducer(std::shared_ptr<CopyMemory> kept);
  void make_one_copy(std::shared_ptr<CopyMemory> kept, const std::vector<at::Tensor>& trained,
                     const std::vector<std::string>& names);
  void check_parameters() const;
  void sync_buffers();
  void enter(StepPhase phase);
  void check_when_due();
  void compare(std::vector<NamedTensor> tensors, const torch::optim::Optimizer* optimizer) const;

  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  std::unique_ptr<ReplicaState> state_;
  std::vector<NamedTensor> frozen_;  // parameters
  bool buffers_differ_ = false;  // changed by a forward in training mode since the last exchange
  const torch::optim::Optimizer* optimizer_ = nullptr;  // to be compared, too
  int exchanges_ = 0;                                   // since replicas were compared
  std::shared_ptr<OneCopyGradients> one_copy_;          // null: a replica of its own
  std::unique_ptr<GradientReducer> reducer_;
};

}  // namespace internal

/// Skips the exchange of gradients while it lives, if `enabled`. Guards nest.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(Replica& replica, bool enabled = true);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  GradientReducer* reducer_;
  bool before_;
};

}  // namespace lockstep
