#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel_options.h"
#include "lockstep/ddp/exchange/bucket_plan.h"
#include "lockstep/ddp/exchange_report.h"
#include "lockstep/ddp/internal/weighted_pass.h"

namespace lockstep::inline internal {

/// Averages gradients over all ranks, a bucket at a time, while backward runs.
///
/// A hook on each parameter copies its gradient into a bucket as autograd finishes it; a full
/// bucket is exchanged at once; at the end of backward() the rest is exchanged and every .grad
/// becomes a view of its bucket. In a group that shares memory large gradients are not copied:
/// autograd writes them there, and they are averaged where they lie. Parameters without a gradient
/// on this rank take part with zeros, and keep an undefined .grad when no rank has one.
///
/// The first backward pass that exchanges gradients does so at its end: it shows in which order
/// they come (rank 0's counts), how often autograd adds to each (more than once where a module runs
/// backward passes of its own), which are sparse and which no rank has. Buckets are planned by
/// that; a parameter whose first gradient comes in a later pass, and is sparse, leaves its bucket
/// in that pass. The norm of the averages, where it is asked for, is worked out from the sums of
/// squares of all buckets, of which each rank has a share.
///
/// Threads: create and set from the training thread; hooks run on autograd's threads.
/// Lifetime: the hooks are removed with it. Errors: from backward(): UsageError for a gradient that
/// comes after its bucket was exchanged, or that is of another layout than in the first pass that
/// had one, on any rank; else as Work::wait; after any, discard it.
class GradientReducer {
 public:
  /// What the options come to for these parameters.
  struct Plan {
    BucketCaps caps;
    /// Exchanged after the bucket with the gradient of `delay_until`: parameters' indices.
    std::vector<std::size_t> delayed = {};
    std::size_t delay_until = 0;
    /// Called at the end of each backward pass whose gradients were exchanged.
    std::function<void()> after_exchange;
  };

  /// `parameters` require gradients; `names` are theirs, for errors.
  GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                  ProcessGroup group, const DistributedDataParallelOptions& options, Plan plan);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Around each forward pass, on the thread that will call backward().
  void before_forward();
  void after_forward();
  /// What it returned; for find_unused_parameters.
  void add_outputs(const std::vector<at::Tensor>& outputs);

  /// While off, backward() leaves local gradients in .grad.
  void set_sync(bool sync);
  bool sync() const;

  /// Errors: UsageError naming a parameter that no longer leads its gradients here, because its
  /// dtype or device was changed or it was frozen after construction.
  void check_parameters() const;

  /// Runs `backward`, a pass of a loss that this rank gives a weight. Weights add up until
  /// gradients are exchanged: these become the weighted mean, over all ranks and all backward
  /// passes since the last exchange, of which each must have one. A pass of weight 0 adds nothing,
  /// not even what is no number; one that reaches no parameter takes part in the exchange all the
  /// same. `loss`: its dtype.
  /// `backward` gets what it is to multiply the gradient of the loss by.
  void run_weighted(double weight, at::ScalarType loss,
                    const std::function<void(double seed)>& backward);

  /// Forgets the weights of the passes since the last exchange: their gradients are given up.
  void give_up_passes();

  /// While false, passes add nothing, not even what is no number, and weights are 0.
  void set_has_data(bool has_data);

  /// See GradientWeight.
  void cast_vote(bool has_data, int vote);
  std::optional<int> withdraw_vote();

  /// Of all averaged gradients after the last backward pass that exchanged them; empty before the
  /// first, and where it was not asked for.
  std::optional<double> gradient_norm() const;

  /// Empty before the first exchange.
  std::vector<BucketLayout> bucket_layout() const;
  /// Of the last exchange; empty before the first, and where it was not asked for.
  std::optional<ExchangeReport> exchange_report() const;

  /// A backward pass has begun to exchange gradients and did not end.
  bool in_backward() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::inline internal
