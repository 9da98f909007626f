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

/// Options of SyncBatchNorm; names and defaults are those of torch.nn.SyncBatchNorm.
struct SyncBatchNormOptions {
  double eps = 1e-5;
  /// Weight of the newest batch in the running statistics. Unset: equal weight for all batches.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Batch normalization with the statistics of all ranks' batches in training, and with running
/// statistics in evaluation, where it does not communicate. With one rank it is BatchNorm. Use it
/// in new models; convert_sync_batchnorm() converts existing ones.
///
/// ```cpp
/// lockstep::SyncBatchNorm norm(64, {.process_group = group});
/// ```
///
/// Input and output: [N, C, …] with at least two dimensions; float32 or float64, under autocast
/// also float16 and bfloat16. N may be 0, and may differ between ranks.
///
/// Gradients of weight and bias are this rank's part; DistributedDataParallel averages them. Clones
/// use the same group. Collective: the constructor, and in training forward and backward.
///
/// Threads: the thread that uses the group.
/// Lifetime: keeps its own process group alive.
/// Errors: UsageError for num_features below 1 and for an input of another shape, in training on
/// every rank; else as Work::wait.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(std::int64_t num_features, const SyncBatchNormOptions& options = {});

  /// Normalizes the input, [N, C, …]. Collective in training.
  at::Tensor forward(const at::Tensor& input);
  /// Prints the options, as LibTorch's modules do.
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const at::Tensor& input) override;
  double count_batch();

  std::shared_ptr<const SyncLayer> layer_;  // null in a group of one rank
};

/// Holder of a SyncBatchNormImpl.
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  /// The module's class, as in LibTorch's holders.
  using Impl [[maybe_unused]] = SyncBatchNormImpl;

  explicit SyncBatchNorm(std::int64_t num_features, const SyncBatchNormOptions& options = {})
      : ModuleHolder(std::make_shared<SyncBatchNormImpl>(num_features, options)) {}
};

}  // namespace lockstep
