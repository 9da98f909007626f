#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Some gradients on their way: what a CommHook averages.
struct HookBucket {
  /// Buckets keep their numbers and members from step to step, the same on every rank.
  std::size_t index = 0;
  /// 1-D, in memory of ProcessGroup::allocate_tensor: this rank's gradients one after the other;
  /// zeros where it has none. The hook leaves the average over ranks in it.
  at::Tensor buffer = {};
  /// The parts of the buffer, in the shapes of the parameters.
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> parameters = {};
};

/// How a bucket of gradients becomes its average over ranks, in place of an all-reduce: compressed,
/// delayed or not at all. Registered by passing an object in DistributedDataParallelOptions; one
/// file each in ddp/hooks/. Sparse gradients do not come here.
///
///   struct Halve final : CommHook {            // averages half of what it is given
///     std::string describe() const override { return "halve"; }
///     std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
///       bucket.buffer.div_(2);
///       return start_average(group, bucket.buffer);
///     }
///   };
///
/// Threads: one at a time, autograd's. Lifetime: may serve several models, one after the other.
class CommHook {
 public:
  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Name and settings in a few words: the same on every rank.
  virtual std::string describe() const = 0;

  /// Called for each bucket, in the order of their numbers, while backward runs. Starts what can be
  /// started; what it returns is called at the end of backward, in the same order, waits, and
  /// leaves the average in the buffer.
  virtual std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) = 0;
};

/// Starts to average the tensor over the ranks, in place; what it returns waits. For hooks: it is
/// not compared with what other ranks call.
std::function<void()> start_average(const ProcessGroup& group, const at::Tensor& tensor);

}  // namespace lockstep
