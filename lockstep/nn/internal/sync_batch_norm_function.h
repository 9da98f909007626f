#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/batch_norm_exchange.h"

namespace lockstep::inline internal {

/// What at::batch_norm takes, of a call that normalizes by the statistics of the batch.
struct BatchNormArguments {
  at::Tensor input;         ///< [N, C, …]; N may be 0. float32, float64, float16, bfloat16.
  at::Tensor weight;        ///< [C] or undefined; float32 where the input is of half precision.
  at::Tensor bias;          ///< As weight.
  at::Tensor running_mean;  ///< [C] or undefined; is updated.
  at::Tensor running_var;   ///< As running_mean.
  double momentum = 0;
  double eps = 0;
};

/// Batch normalization over the batches of all ranks together: output, gradients and running
/// statistics are those of one process with all of them. Parameters' gradients are this rank's
/// share. Differentiable any number of times; backward is collective where any rank's input takes a
/// gradient. Every rank holds the same bits of the running statistics.
/// Collective. Threads: the one that uses the group. Errors: UsageError on every rank where ranks
/// are in different layers, pass different numbers of channels, or fewer than 2 values a channel in
/// all; else as Work::wait.
at::Tensor sync_batch_norm(const std::shared_ptr<const SyncLayer>& layer,
                           const BatchNormArguments& arguments);

}  // namespace lockstep::inline internal
