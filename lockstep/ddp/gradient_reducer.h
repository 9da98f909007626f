#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

/// Averages gradients over all ranks, a bucket at a time, while backward runs.
///
/// A hook on each parameter copies its gradient into a bucket as autograd finishes it; a full
/// bucket is exchanged at once; at the end of backward() the rest is exchanged and every .grad
/// becomes a view of its bucket. In a group that shares memory large gradients are not copied:
/// autograd writes them there, and they are averaged where they lie. Parameters without a gradient
/// on this rank take part with zeros, and keep an undefined .grad when no rank has one. Buckets
/// start in reverse order of the parameters and are rebuilt after the first exchange in the order
/// in which rank 0's gradients came. The norm of the averages, where it is asked for, is worked out
/// from the sums of squares of all buckets, of which each rank has a share.
///
/// Threads: create and set from the training thread; hooks run on autograd's threads.
/// Lifetime: the hooks are removed with it. Errors: from backward(): UsageError when a parameter
/// gets two gradients in one backward pass, else as Work::wait; after either, discard it.
class GradientReducer {
 public:
  struct Options {
    BucketCaps caps;
    /// As in DistributedDataParallelOptions.
    bool gradient_norm = false;
    std::optional<at::ScalarType> exchange_dtype = std::nullopt;
    /// Called at the end of each backward pass whose gradients were exchanged.
    std::function<void()> after_exchange;
  };

  /// `parameters` require gradients; `names` are theirs, for errors.
  GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                  ProcessGroup group, Options options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Around each forward pass, on the thread that will call backward().
  void before_forward();
  void after_forward();

  /// While off, backward() leaves local gradients in .grad.
  void set_sync(bool sync);
  bool sync() const;

  /// Errors: UsageError naming a parameter that no longer leads its gradients here, because its
  /// dtype or device was changed or it was frozen after construction.
  void check_parameters() const;

  /// Of all averaged gradients after the last backward pass that exchanged them; empty before the
  /// first, and where it was not asked for.
  std::optional<double> gradient_norm() const;

  /// A backward pass has begun to exchange gradients and did not end.
  bool in_backward() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
