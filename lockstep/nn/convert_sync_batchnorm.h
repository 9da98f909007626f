#pragma once

#include <cstddef>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Options of convert_sync_batchnorm().
struct ConvertSyncBatchNormOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Makes every BatchNorm1d, 2d and 3d in `module` (or `module` itself) normalize with the
/// statistics of all ranks' batches during training, as torch.nn.SyncBatchNorm does. Works on the
/// CPU too, with batches of any sizes, 0 included. Returns the number of such layers; 0 is no
/// error.
///
/// ```cpp
/// Net net;  // its members are BatchNorm2d
/// lockstep::convert_sync_batchnorm(*net, {.process_group = group});
/// lockstep::DistributedDataParallel model(net, {.process_group = group});
/// ```
///
/// The modules stay the same objects, with their parameters, buffers and names. LibTorch's operator
/// batch_norm recognizes a converted module by its weight or running_mean. The conversion survives
/// to(), load and train(). Repeat it for clones, and for a module that gets another weight and
/// running_mean; a second conversion is harmless. Evaluation mode does not communicate.
///
/// Gradients of weight and bias are this rank's part; DistributedDataParallel averages them.
/// LibTorch's modules refuse a batch of one value per channel on any rank; SyncBatchNorm accepts
/// it.
///
/// Collective; so are forward in training and backward.
///
/// Threads: the thread that converts must outlive the group, as for any ProcessGroup; no other
/// thread may be in forward meanwhile.
/// Lifetime: the layers share their own process group, which closes at the next conversion after
/// all these modules are destroyed, or at exit.
/// Errors: UsageError on every rank if modules differ between ranks, or if a BatchNorm has neither
/// affine parameters nor running statistics; from forward and backward as Work::wait.
std::size_t convert_sync_batchnorm(torch::nn::Module& module,
                                   const ConvertSyncBatchNormOptions& options = {});

}  // namespace lockstep
