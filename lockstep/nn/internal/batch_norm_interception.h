#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/sync_batch_norm_function.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline internal {

/// Redirects calls of LibTorch's operator batch_norm that train with `weight` or `running_mean`
/// (one may be undefined) to `layer`. Without running statistics the operator cannot tell whether a
/// call trains: `module` does, or if it is destroyed, all calls train. The first use replaces the
/// operator's implementation by one that looks for such tensors; it passes all other calls to
/// LibTorch's.
/// Threads: no other thread may be in the operator.
/// Lifetime: until both tensors are destroyed.
void intercept_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean,
                          std::shared_ptr<const SyncLayer> layer,
                          std::weak_ptr<const torch::nn::Module> module);

/// Whether calls with these tensors are redirected.
bool is_intercepted(const at::Tensor& weight, const at::Tensor& running_mean);

/// Stops the redirection of calls with these tensors.
void release_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean);

/// Removes layers whose tensors are destroyed.
void forget_dead_layers();

}  // namespace lockstep::inline internal
