#pragma once

#include <cstddef>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct ConvertSyncBatchNormOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Lets every BatchNorm1d, 2d and 3d in `module`, itself included, normalize by the statistics of
/// the batches of all ranks while it trains, as torch.nn.SyncBatchNorm does; on the CPU too, with
/// batches of any sizes, 0 included. Returns how many there are; 0 is no error.
///
///   Net net;                                        // its members are BatchNorm2d, as ever
///   lockstep::convert_sync_batchnorm(*net, {.process_group = group});
///   lockstep::DistributedDataParallel model(net, {.process_group = group});
///
/// The modules stay the objects they are, and keep their parameters, buffers and names; a call of
/// one that is converted is recognised, by its weight or running_mean, in LibTorch's operator
/// batch_norm. That lasts through to(), load and train(), and has to be done anew for clones and
/// for a module that is given another weight and running_mean. In evaluation mode nothing is
/// communicated. To convert twice does no harm.
/// Gradients of weight and bias are this rank's share: DistributedDataParallel averages them.
/// LibTorch's modules refuse a batch of one value a channel on any rank before the operator is
/// reached; SyncBatchNorm takes those.
/// Collective, and so are forward, in training, and backward. Threads: the thread that converts
/// must outlive the group, as with any ProcessGroup; no other thread may be in forward meanwhile.
/// Lifetime: the layers share a process group of their own, which closes when the next conversion
/// finds that no module is left, or at exit.
/// Errors: UsageError on every rank where modules differ, or where a BatchNorm has neither affine
/// parameters nor running statistics; from forward and backward as Work::wait.
std::size_t convert_sync_batchnorm(torch::nn::Module& module,
                                   const ConvertSyncBatchNormOptions& options = {});

}  // namespace lockstep
