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

/// Options of DistributedDataParallel. Names are those of
/// torch.nn.parallel.DistributedDataParallel; defaults too, unless noted. All ranks must pass the
/// same.
struct DistributedDataParallelOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Size of a bucket of gradients in MiB, above 0, at most 1e9. Unset: the best size that the
  /// backend has measured (shm: 1 or 8), else 25, and 1 for the first bucket.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// Sizes of the first, second, … bucket in MiB; the last one is used for all further buckets.
  /// Replaces bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};
  /// At construction, copy rank 0's parameters and buffers to all ranks. If false, they must be
  /// equal already.
  bool init_sync = true;
  /// Copy rank 0's buffers (running statistics and the like) to all ranks: before each forward in
  /// training mode and at the end of each backward pass, so they are equal when a step ends. In
  /// evaluation mode only the first forward after a forward in training mode without backward
  /// communicates. Autograd does not notice the copy, as it does not notice BatchNorm's updates. If
  /// backward follows several forwards, it uses rank 0's values of a buffer that an earlier forward
  /// multiplied by: clone() such a buffer in forward.
  bool forward_sync_buffers = true;
  /// Find unused parameters in forward, by walking the graph of its outputs, so that buckets need
  /// not wait for them until backward ends. For models that skip different parameters in different
  /// steps. Without this option unused parameters are handled too, at the end of backward.
  bool find_unused_parameters = false;
  /// The graph stays as it is in the first backward pass that exchanges gradients. Parameters that
  /// no rank uses in that pass are never exchanged.
  bool static_graph = false;
  /// .grad is a view of the bucket, without a copy; the next backward pass writes into it. If
  /// false, .grad keeps its own memory. PyTorch's default is false.
  bool gradient_as_bucket_view = true;
  /// Names (of named_parameters() and named_buffers()) that are neither compared nor exchanged.
  std::vector<std::string> parameters_and_buffers_to_ignore = {};
  /// Names of parameters whose gradients are exchanged together, after the gradient of
  /// param_to_hook_all_reduce is ready. For gradients that autograd accumulates late, in pieces.
  /// Set both or neither.
  std::vector<std::string> delay_all_reduce_named_params = {};
  /// See delay_all_reduce_named_params.
  std::string param_to_hook_all_reduce = {};
  /// Compute the L2 norm of all averaged gradients while they are averaged, for gradient_norm();
  /// with one_copy_per_machine when that is called. Not with hooks that let replicas differ
  /// (post-local SGD, no-op).
  bool gradient_norm = false;
  /// Exchange gradients of float32 parameters in this dtype, kHalf or kBFloat16, like PyTorch's
  /// fp16_compress_hook and bf16_compress_hook; .grad stays float32. If the group shares memory,
  /// they are rounded once, when they are copied, and averaged in float32. Else they are divided by
  /// the number of ranks, rounded, and summed in this dtype. Gradients of other dtypes keep theirs.
  /// Unset: all keep theirs.
  std::optional<at::ScalarType> exchange_dtype = std::nullopt;
  /// After this many exchanges, at the start of the next forward in training mode, compare all
  /// ranks' parameters and, with forward_sync_buffers, buffers; check_replicas_with() adds the
  /// optimizer. 0: never. Cost and error: ddp/replica_check.h. Not with hooks that let replicas
  /// differ between steps (post-local SGD, no-op).
  int check_replicas_every = 0;
  /// Record when each bucket is ready, exchanged and waited for, for exchange_report(). Reads the
  /// clock several times per parameter and polls running exchanges.
  bool measure_exchange = false;
  /// Records the time of forward, backward and exchange; see StepTimer. Null: none.
  std::shared_ptr<StepTimer> step_timer = {};
  /// Keep trained parameters and optimizer state once per machine, in memory that all ranks map.
  /// backward() leaves each rank's gradients there. step() of a Lockstep optimizer averages them
  /// and updates this rank's shard of the parameters in one pass, with the bits of replicas.
  /// docs/one-copy.md says what .grad holds. The backend must be shm, or hierarchical over several
  /// machines; a rank that shares memory with no other has an ordinary model. Not with comm_hook,
  /// exchange_dtype, measure_exchange and join().
  bool one_copy_per_machine = false;
  /// Averages buckets in place of an all-reduce; see ddp/hooks.h. One object per model. Null: none.
  /// Not with exchange_dtype.
  std::shared_ptr<CommHook> comm_hook = {};
};

inline namespace internal {

/// One line per option that must be equal on all ranks: "option static_graph=true".
std::string describe(const DistributedDataParallelOptions& options);

/// Validates the options and claims the hook for the model.
/// Errors: UsageError with the option for invalid values, and for a hook that serves another model.
void check(const DistributedDataParallelOptions& options);

}  // namespace internal

}  // namespace lockstep
