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

/// Of DistributedDataParallel::backward.
struct WeightedBackwardOptions {
  /// How much this loss counts beside those of other ranks and other backward passes: the number of
  /// samples or tokens that it is the mean of. 0 or more; 0 for one that does not count.
  double weight = 1;
  /// As in Tensor::backward.
  bool retain_graph = false;
  bool create_graph = false;
};

/// The part of DistributedDataParallel that does not depend on the module's type: makes a module
/// the replica of rank 0's and keeps it so. Threads, lifetime, errors: as DistributedDataParallel.
class Replica {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  void before_forward();
  void after_forward();
  /// Whether forward is to tell its outputs.
  bool finds_unused_parameters() const { return options_.find_unused_parameters; }
  void add_outputs(const std::vector<at::Tensor>& outputs);

  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options);

  /// See GradientReducer.
  void cast_vote(bool has_data, int vote);
  std::optional<int> withdraw_vote();
  void set_has_data(bool has_data);
  void give_up_passes();

  /// See DistributedDataParallel.
  void check_replicas_agree(const torch::optim::Optimizer* optimizer) const;
  void check_replicas_with(const torch::optim::Optimizer& optimizer) { optimizer_ = &optimizer; }

  std::vector<at::Tensor> parameters() const;
  double gradient_norm() const;
  std::vector<at::Tensor> averaged_gradients();
  std::vector<BucketLayout> bucket_layout() const;
  ExchangeReport exchange_report() const;
  const ProcessGroup& process_group() const { return group_; }

 private:
  friend class NoSyncGuard;
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
  bool buffers_differ_ = false;      // a training forward has changed them since the last exchange
  const torch::optim::Optimizer* optimizer_ = nullptr;  // to be compared, too
  int exchanges_ = 0;                                   // since replicas were compared
  std::shared_ptr<OneCopyGradients> one_copy_;          // null: a replica of its own
  std::unique_ptr<GradientReducer> reducer_;
};

/// Keeps gradients local while it lives, unless it is not enabled. Guards nest.
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
