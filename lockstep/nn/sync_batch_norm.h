#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

inline namespace internal {
struct SyncLayer;
}

/// Names and defaults are those of torch.nn.SyncBatchNorm.
struct SyncBatchNormOptions {
  double eps = 1e-5;
  /// Weight of the newest batch in the running statistics. Unset: all batches weigh the same.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Batch normalization that in training takes the statistics of the batches of all ranks, and in
/// evaluation the running ones, without communication. Input [N, C, …] with two dimensions or more,
/// float32, float64, or float16 and bfloat16 under autocast; N may be any number, 0 included, and
/// differ between ranks. With one rank it is BatchNorm. For models written anew;
/// convert_sync_batchnorm has the rest.
///
///   lockstep::SyncBatchNorm norm(64, {.process_group = group});
///
/// Collective: construction, and in training forward and backward. Gradients of weight and bias are
/// this rank's share: DistributedDataParallel averages them. Clones belong to the same group.
/// Threads: the one that uses the group. Lifetime: keeps a process group of its own alive.
/// Errors: UsageError for a number of features below 1, and for an input of another shape; in
/// training, on every rank; else as Work::wait.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(std::int64_t num_features, const SyncBatchNormOptions& options = {});

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const at::Tensor& input) override;
  double count_batch();

  std::shared_ptr<const SyncLayer> layer_;  // null in a group of one rank
};

class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = SyncBatchNormImpl;

  explicit SyncBatchNorm(std::int64_t num_features, const SyncBatchNormOptions& options = {})
      : ModuleHolder(std::make_shared<SyncBatchNormImpl>(num_features, options)) {}
};

}  // namespace lockstep
