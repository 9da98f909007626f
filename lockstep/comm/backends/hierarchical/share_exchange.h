#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::hierarchical {

/// A share of a tensor: a range of bytes of one machine's sum, in place.
/// Lifetime: keeps the tensor, to which Gloo may write when nobody else does any more.
struct Share {
  at::Tensor whole;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Wakes threads that wait for one of several events.
/// Threads: any.
class Signal {
 public:
  void raise() {
    {
      const MutexLock lock(mutex_);
      ++count_;
    }
    raised_.notify_all();
  }

  /// Read it before checking for the event.
  std::uint64_t count() {
    const MutexLock lock(mutex_);
    return count_;
  }

  /// Returns when the signal was raised since `count`, or after `limit`.
  void wait_past(std::uint64_t count, std::chrono::milliseconds limit) {
    MutexLock lock(mutex_);
    raised_.wait_for(lock.native(), limit,
                     [&]() LOCKSTEP_REQUIRES(mutex_) { return count_ != count; });
  }

 private:
  Mutex mutex_;
  std::condition_variable raised_;
  std::uint64_t count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

/// A running message exchange of Gloo.
/// Lifetime: keeps Gloo's work, and with it what it sends.
class GlooCall {
 public:
  GlooCall(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<Signal> signal);

  /// Whether it has ended.
  /// Errors: what it failed with.
  bool ended();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<std::atomic<bool>> ended_;
};

/// Exchanges bytes between machines, among the ranks of one local index. Shares are summed in
/// machine order. With two machines a share is sent whole and both sum it. With more it is
/// scattered, each machine sums a part, and the sums are all-gathered: each machine sends and
/// receives 2 (n − 1) / n of a share, which is the minimum.
/// Threads: one at a time.
/// Errors: Gloo's.
class ShareExchange {
 public:
  /// `scatter` and `spread`: Gloo groups of one rank per machine, in machine order; only more than
  /// two machines use `spread`. They are two groups, because each runs its calls in one order on
  /// all ranks.
  ShareExchange(const Machines& machines, std::shared_ptr<NativeBackend> scatter,
                std::shared_ptr<NativeBackend> spread, std::shared_ptr<Signal> signal);

  /// As NativeBackend::is_cut_off, of the ranks on other machines.
  bool is_cut_off(Deadline::Clock::time_point begun) { return scatter_->is_cut_off(begun); }

  /// With two machines start_scatter and sum suffice.
  bool needs_spread() const { return machines_ > 2; }

  /// Bytes of staging memory that the exchange of a share needs until it is complete.
  std::int64_t staging_bytes(const Share& share) const;

  std::unique_ptr<GlooCall> start_scatter(const Share& share, const at::Tensor& staging,
                                          Deadline deadline);
  /// After the scatter has ended: sums the whole share with two machines, else this machine's part.
  void sum(const Reduction& reduction, const Share& share, const at::Tensor& staging) const;
  std::unique_ptr<GlooCall> start_spread(const Share& share, const at::Tensor& staging,
                                         Deadline deadline);

  /// Sends each machine other bytes of `input`, by machine one behind the other.
  std::unique_ptr<GlooCall> start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                             const std::vector<std::int64_t>& output_bytes,
                                             const std::vector<std::int64_t>& input_bytes,
                                             Deadline deadline);
  /// Copies a share of machine `source` to all others.
  std::unique_ptr<GlooCall> start_broadcast(const Share& share, int source, Deadline deadline);

  /// "the exchange between machines with rank 3", for errors.
  std::string name() const;

 private:
  std::unique_ptr<GlooCall> start(c10d::Backend& group, at::Tensor output, at::Tensor input,
                                  std::vector<std::int64_t> output_bytes,
                                  std::vector<std::int64_t> input_bytes, Deadline deadline);
  std::vector<std::int64_t> part_bytes(const Share& share) const;

  const int machines_;
  const int machine_;
  const std::vector<int> partners_;
  const std::shared_ptr<NativeBackend> scatter_;
  const std::shared_ptr<NativeBackend> spread_;
  const std::shared_ptr<Signal> signal_;
};

}  // namespace lockstep::hierarchical
