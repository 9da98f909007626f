#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/nn/internal/sync_batch_norm_function.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline internal {

/// From now on calls of LibTorch's operator batch_norm that train with `weight` or `running_mean`
/// (one may be undefined) are calls of `layer`. `module` says whether they train where the operator
/// cannot tell, for want of running statistics; where it is gone they do.
/// The first call gives the operator an implementation that looks for such tensors; all other calls
/// go on to LibTorch's.
/// Threads: no other thread may be in the operator. Lifetime: until both tensors are gone.
void intercept_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean,
                          std::shared_ptr<const SyncLayer> layer,
                          std::weak_ptr<const torch::nn::Module> module);

/// Whether calls with these tensors are those of a layer.
bool is_intercepted(const at::Tensor& weight, const at::Tensor& running_mean);

/// Calls with these tensors are LibTorch's again.
void release_batch_norm(const at::Tensor& weight, const at::Tensor& running_mean);

/// Forgets layers whose tensors are gone.
void forget_dead_layers();

}  // namespace lockstep::inline internal
