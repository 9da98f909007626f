#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// A bucket of gradients that a CommHook averages.
struct HookBucket {
  /// Number of the bucket. Buckets keep number and members from step to step, the same on every
  /// rank.
  std::size_t index = 0;
  /// This rank's gradients, concatenated: 1-D, in memory of ProcessGroup::allocate_tensor, zeros
  /// for a parameter without a gradient. The hook writes the average over ranks into it. Its dtype
  /// is that of the bucket's parameters, float16 and bfloat16 included. Complex parameters: float32
  /// or float64, two elements per number.
  at::Tensor buffer = {};
  /// Views of the buffer in the shapes of the parameters; complex for complex parameters.
  std::vector<at::Tensor> gradients = {};
  /// The parameters, in the order of `gradients`.
  std::vector<at::Tensor> parameters = {};
};

/// Averages a bucket of gradients over ranks in place of an all-reduce: compressed, delayed, or not
/// at all. DistributedDataParallelOptions::comm_hook registers it; ddp/hooks.h has several. Sparse
/// gradients bypass it.
///
///     struct Halve final : CommHook {            // averages half of each gradient
///       std::string describe() const override { return "halve"; }
///       std::function<void()> start(const ProcessGroup& group,
///                                   const HookBucket& bucket) override {
///         bucket.buffer.div_(2);
///         return start_average(group, bucket.buffer);
///       }
///     };
///
/// A hook object serves one model, because its state belongs to that model's buckets. Snapshots do
/// not contain its state: a resumed run begins with a new hook.
///
/// Ranks do not compare the calls of start_average, except with shm. If a hook passes different
/// sizes on some ranks, the average is wrong there, or an assertion in Gloo ends the process. Other
/// collectives of the group are checked as usual, for which gloo needs an exchange each.
///
/// Threads: one at a time, an autograd thread.
/// Errors: start() and the function that it returns may throw; backward() throws the same on that
/// rank. Other ranks wait until its process ends or the deadline expires. Then create a new
/// wrapper, with a new hook and a new group.
class CommHook {
 public:
  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Name and settings in one line, the same on every rank.
  virtual std::string describe() const = 0;

  /// Whether all ranks have equal gradients after each exchange, and so equal parameters.
  virtual bool keeps_replicas_equal() const { return true; }

  /// Reserves the hook for one model. DistributedDataParallel calls it, and a hook for its inner
  /// hooks.
  /// Errors: UsageError on the second call.
  void claim();

  /// Starts to average a bucket. Called for each bucket in the order of their numbers while
  /// backward runs. The returned function is called at the end of backward, in the same order; it
  /// waits until the average is in the buffer.
  virtual std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) = 0;

 private:
  bool is_claimed_ = false;
};

/// Starts to average a tensor of a real dtype over the ranks, in place. The returned function
/// waits. For hooks: ranks do not compare the call, except with shm.
std::function<void()> start_average(const ProcessGroup& group, const at::Tensor& tensor);

}  // namespace lockstep
