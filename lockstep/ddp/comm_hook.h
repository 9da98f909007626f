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
  /// zeros where it has none. The hook leaves the average over ranks in it. Its dtype is that of
  /// the bucket's parameters, which is the same for all of them: float16 and bfloat16 too; of
  /// complex ones, float32 or float64, two elements for each number.
  at::Tensor buffer = {};
  /// The parts of the buffer, in the shapes of the parameters, and complex where these are.
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> parameters = {};
};

/// How a bucket of gradients becomes its average over ranks, in place of an all-reduce: compressed,
/// delayed or not at all. Registered by passing an object in DistributedDataParallelOptions;
/// ddp/hooks.h has some. Sparse gradients do not come here.
///
///   struct Halve final : CommHook {            // averages half of what it is given
///     std::string describe() const override { return "halve"; }
///     std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
///       bucket.buffer.div_(2);
///       return start_average(group, bucket.buffer);
///     }
///   };
///
/// A hook serves one model, whose buckets its state belongs to; every model needs one of its own.
/// Its state is in no snapshot: a run that goes on from one begins with a new hook.
///
/// What a hook sends by start_average is not compared with what other ranks send, unless the
/// backend does so itself (shm does): a hook that sends something else on some rank gets a wrong
/// average there, or ends the process, by an assertion in Gloo. Collectives of the group are
/// compared as ever, for which gloo needs an exchange each.
///
/// Threads: one at a time, autograd's. Errors: start() and what it returns may throw; backward()
/// throws the same on that rank, and other ranks wait for it until its process ends or their
/// deadline passes. Then the wrapper is to be built anew, with a new hook and a new group.
class CommHook {
 public:
  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Name and settings in a few words of one line: the same on every rank.
  virtual std::string describe() const = 0;

  /// Whether all ranks have the same gradients after each exchange, and so the same parameters.
  virtual bool keeps_replicas_equal() const { return true; }

  /// By DistributedDataParallel when it is constructed, and by a hook for those that it calls.
  /// Errors: UsageError the second time.
  void claim();

  /// Called for each bucket, in the order of their numbers, while backward runs. Starts what can be
  /// started; what it returns is called at the end of backward, in the same order, waits, and
  /// leaves the average in the buffer.
  virtual std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) = 0;

 private:
  bool is_claimed_ = false;
};

/// Starts to average the tensor, of a real dtype, over the ranks, in place; what it returns waits.
/// For hooks: it is not compared with what other ranks call.
std::function<void()> start_average(const ProcessGroup& group, const at::Tensor& tensor);

}  // namespace lockstep
