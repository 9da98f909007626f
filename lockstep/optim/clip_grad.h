#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Names and defaults are those of torch.nn.utils.clip_grad_norm_.
struct ClipGradOptions {
  /// The order of the norm; infinity: the largest absolute value.
  double norm_type = 2.0;
  /// Throw, and leave the gradients alone, where the norm is infinite or no number.
  bool error_if_nonfinite = false;
  /// For parameters that are spread over ranks, each on one rank of this group: the norm is that of
  /// all of them, the same bits on every rank, and the call is collective. Empty, as after
  /// DistributedDataParallel: every rank has all gradients already, nothing is communicated.
  ProcessGroup process_group = {};
};

/// Scales the gradients so that their norm, as that of one vector, is at most max_norm, and returns
/// what it was: torch.nn.utils.clip_grad_norm_, bit for bit. A parameter counts once, however often
/// it is given; one without gradient counts as nothing; sparse gradients are coalesced. On a CUDA
/// device it waits for the norm. Errors: UsageError for a max_norm below 0; Error for a non-finite
/// norm where that was asked for; with a group as Work::wait. With one_copy_per_machine collective:
/// the gradients are averaged first, and the norm's order must be 2.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipGradOptions& options = {});

/// As clip_grad_norm_, with a norm that is known already, as DistributedDataParallel's
/// gradient_norm(): one pass over the gradients less, none where nothing is to be clipped.
void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double total_norm);

/// The norm alone.
double get_total_norm(const std::vector<at::Tensor>& parameters,
                      const ClipGradOptions& options = {});

/// Clamps every element of every gradient to [-clip_value, clip_value]. With one_copy_per_machine
/// collective, and the gradients are averaged first.
/// Errors: UsageError for a clip_value below 0.
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace lockstep
