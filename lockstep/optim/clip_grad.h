#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Options of gradient clipping. Names and defaults are those of torch.nn.utils.clip_grad_norm_.
struct ClipGradOptions {
  /// Order of the norm; infinity: the largest absolute value.
  double norm_type = 2.0;
  /// If the norm is infinite or NaN, throw and leave the gradients unchanged.
  bool error_if_nonfinite = false;
  /// For parameters that are sharded over ranks, each on one rank of this group: the norm covers
  /// all of them, with the same bits on every rank, and the call is collective. Empty, as with
  /// DistributedDataParallel: every rank has all gradients, and nothing is communicated.
  ProcessGroup process_group = {};
  /// For ranks that hold the same shards, as with HSDP: all use the norm of rank 0 of this group,
  /// so that replicas stay equal where processors round sums otherwise. Collective.
  ProcessGroup replicate_group = {};
};

/// Scales the gradients so that their norm, as one vector, is at most max_norm:
/// torch.nn.utils.clip_grad_norm_, bit for bit. Returns the norm before scaling. A parameter that
/// occurs twice counts once; parameters without a gradient are ignored; sparse gradients are
/// coalesced. On a CUDA device it waits for the norm. With one_copy_per_machine it is collective,
/// averages the gradients first, and supports norm_type 2 only.
/// Errors: UsageError for a max_norm below 0; Error for a non-finite norm with error_if_nonfinite;
/// with a group see Work::wait.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipGradOptions& options = {});

/// Scales the gradients like clip_grad_norm_, by a norm that is already known, such as
/// DistributedDataParallel::gradient_norm(). It saves one pass over the gradients, and both if
/// nothing is to be clipped.
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double total_norm);

/// Returns the norm of the gradients, as clip_grad_norm_ computes it.
double get_total_norm(const std::vector<at::Tensor>& parameters,
                      const ClipGradOptions& options = {});

/// Clamps every element of every gradient to [-clip_value, clip_value]. With one_copy_per_machine
/// it is collective and averages the gradients first.
/// Errors: UsageError for a clip_value below 0.
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace lockstep
