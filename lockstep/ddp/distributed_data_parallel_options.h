#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/profile/step_timer.h"

namespace lockstep {

/// Names are those of torch.nn.parallel.DistributedDataParallel, and defaults where not said
/// otherwise. All ranks must give the same.
struct DistributedDataParallelOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Gradients are exchanged in buckets of this many MiB, 1e9 at most. Unset: what the backend has
  /// measured to be best (shm: 1 or 8), else 25, and 1 for the first.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// The caps of the first, second, … bucket; the last one holds for all after it. Instead of
  /// bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};
  /// Compare the modules of all ranks and give every rank rank 0's parameters and buffers.
  /// Without it they must be the same already.
  bool init_sync = true;
  /// Give every rank rank 0's buffers (running statistics and the like): before each forward in
  /// training mode and at the end of each backward pass, so that they agree whenever a step ends.
  /// Evaluation communicates only in the first forward after a training forward without backward.
  /// Autograd does not notice, as it does not notice that a BatchNorm updates its statistics: where
  /// backward follows several forwards, one that multiplied by a buffer that differed between ranks
  /// finds rank 0's in it; clone() such a buffer in forward.
  bool forward_sync_buffers = true;
  /// Parameters that a backward pass does not reach need no option. With this one they are found
  /// in forward, by walking the graph of its outputs, so that buckets need not wait for them until
  /// backward ends: for models that leave out different parameters in different steps.
  bool find_unused_parameters = false;
  /// The graph stays what it is in the first backward pass that exchanges gradients. Parameters
  /// that no rank uses then are never exchanged.
  bool static_graph = false;
  /// .grad is a view of the bucket, which the next backward pass writes to: no copy. Otherwise it
  /// keeps its own memory. PyTorch's default is false.
  bool gradient_as_bucket_view = true;
  /// Names, as in named_parameters() and named_buffers(), of what is neither compared nor
  /// exchanged.
  std::vector<std::string> parameters_and_buffers_to_ignore = {};
  /// Parameters whose gradients are exchanged together, once that of param_to_hook_all_reduce is
  /// there (both names, or neither): for gradients that come in late pieces.
  std::vector<std::string> delay_all_reduce_named_params = {};
  std::string param_to_hook_all_reduce = {};
  /// Work out the L2 norm of all averaged gradients while they are averaged, for gradient_norm();
  /// with one_copy_per_machine when that is called.
  /// Not with hooks that let replicas differ (post-local SGD, no-op): refused.
  bool gradient_norm = false;
  /// Gradients of float32 parameters travel in this dtype, kHalf or kBFloat16, as with PyTorch's
  /// fp16_compress_hook and bf16_compress_hook; .grad stays float32. Where the group shares memory
  /// they are rounded once, when they are copied, and averaged in float32; elsewhere they are
  /// divided by the number of ranks, rounded and summed in this dtype. Gradients of other dtypes,
  /// complex ones too, travel in their own. Unset: all do.
  std::optional<at::ScalarType> exchange_dtype = std::nullopt;
  /// After this many exchanges of gradients, at the start of the next forward in training mode,
  /// compare the parameters and, with forward_sync_buffers, the buffers of all ranks: see
  /// ddp/replica_check.h for the cost and the error, and check_replicas_with for the optimizer. Not
  /// with hooks that let replicas differ between steps (post-local SGD, no-op): refused. 0: never.
  int check_replicas_every = 0;
  /// Note when each bucket is ready, exchanged and waited for, for exchange_report(). It reads the
  /// clock some times a parameter and asks exchanges under way whether they are complete.
  bool measure_exchange = false;
  /// Notes how long forward, backward and exchange take; see StepTimer. Null: none.
  std::shared_ptr<StepTimer> step_timer = {};
  /// Keep the parameters that are trained, and the state of their optimizer, once on a machine, in
  /// memory that all ranks map. backward() leaves each rank's gradients there, and step() of an
  /// optimizer of Lockstep averages them and updates this rank's share of the parameters in one
  /// pass. The bits are those of replicas; what .grad holds then: docs/one-copy.md. All ranks on
  /// one machine, backend shm; alone a rank has an ordinary model. Not with comm_hook,
  /// exchange_dtype and measure_exchange, nor with join().
  bool one_copy_per_machine = false;
  /// Averages buckets in place of an all-reduce; see ddp/hooks.h. An object serves one model. Null:
  /// none. Not with exchange_dtype.
  std::shared_ptr<CommHook> comm_hook = {};
};

/// A line of text for each option that must be the same on all ranks: "option static_graph=true".
std::string describe(const DistributedDataParallelOptions& options);

/// Claims the hook for the model that is given these options. Errors: UsageError for values that
/// cannot work, naming the option, and for a hook that serves another model.
void check(const DistributedDataParallelOptions& options);

}  // namespace lockstep
