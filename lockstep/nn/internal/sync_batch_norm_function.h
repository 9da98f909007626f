#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/batch_norm_exchange.h"

namespace lockstep::inline internal {

/// Arguments of at::batch_norm for a call that normalizes with the statistics of the batch.
struct BatchNormArguments {
  at::Tensor input;         ///< [N, C, …]; N may be 0. float32, float64, float16, bfloat16.
  at::Tensor weight;        ///< [C] or undefined; float32 if the input has half precision
  at::Tensor bias;          ///< as weight
  at::Tensor running_mean;  ///< [C] or undefined; updated
  at::Tensor running_var;   ///< as running_mean
  double momentum = 0;
  double eps = 0;
};

/// Batch normalization over the batches of all ranks: output, gradients and running statistics are
/// those of one process with all batches. Gradients of parameters are this rank's part. Running
/// statistics have the same bits on every rank. Differentiable any number of times. Collective;
/// backward is collective if the input of any rank requires a gradient.
/// Threads: the thread that uses the group.
/// Errors: UsageError on every rank if ranks are in different layers or pass different numbers of
/// channels, and for fewer than 2 values per channel over all ranks; else as Work::wait.
at::Tensor sync_batch_norm(const std::shared_ptr<const SyncLayer>& layer,
                           const BatchNormArguments& arguments);

}  // namespace lockstep::inline internal
