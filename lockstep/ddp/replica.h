#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Names and defaults are those of torch.nn.parallel.DistributedDataParallel.
struct DistributedDataParallelOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Gradients are exchanged in buckets of this many MiB. Unset: what the backend has measured to
  /// be best (shm: 1 or 8), else 25, and 1 for the first.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// Give every rank rank 0's buffers (running statistics and the like): before each forward in
  /// training mode and at the end of each backward pass, so that they agree whenever a step ends.
  /// Evaluation communicates only in the first forward after a training forward without backward.
  bool forward_sync_buffers = true;
  /// Work out the L2 norm of all averaged gradients while they are averaged, for gradient_norm().
  bool gradient_norm = false;
  /// Gradients of float32 parameters travel in this dtype, kHalf or kBFloat16, as with PyTorch's
  /// fp16_compress_hook and bf16_compress_hook; .grad stays float32. Unset: in their own. Where the
  /// group shares memory they are rounded once, when they are copied, and averaged in float32;
  /// elsewhere they are divided by the number of ranks, rounded and summed in this dtype.
  std::optional<at::ScalarType> exchange_dtype = std::nullopt;
};

class GradientReducer;

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

  std::vector<at::Tensor> parameters() const;
  double gradient_norm() const;
  const ProcessGroup& process_group() const { return group_; }

 private:
  friend class NoSyncGuard;
  void sync_buffers();

  std::shared_ptr<torch::nn::Module> module_;
  ProcessGroup group_;
  bool forward_sync_buffers_;
  bool has_gradient_norm_;
  bool buffers_differ_ = false;  // a training forward has changed them since the last exchange
  std::unique_ptr<GradientReducer> reducer_;  // null where nothing is to be done with gradients
};

/// Keeps gradients local while it lives. Guards nest.
class NoSyncGuard {
 public:
  explicit NoSyncGuard(Replica& replica);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  GradientReducer* reducer_;
  bool before_ = true;
};

}  // namespace lockstep
