#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/reduce_op.h"

/// The interface between the collectives of a ProcessGroup and the backends that run them.
namespace lockstep::inline internal {

/// Arguments of a call besides its tensors.
struct CallTerms {
  std::chrono::milliseconds timeout;
  /// Compared between ranks by a backend that compares calls itself; empty: none.
  std::string_view name = {};
  /// See CollectiveOptions.
  bool deadline_from_wait = false;
};

/// How all_reduce_into reduces.
struct ScaledReduction {
  ReduceOp op = ReduceOp::kSum;
  /// Only with kAvg: factor of the average, applied in the same pass; equal on all ranks.
  double scale = 1;
  /// One float64 on the CPU, to which the same pass adds the squares of the results that this rank
  /// computes; over all ranks each once. Results must have a floating-point dtype.
  at::Tensor sum_of_squares = {};
};

/// Interface of a backend whose ranks access each other's tensors without a copy, if these are in
/// memory of c10d::Backend::allocateTensor.
/// Threads: as NativeBackend.
/// Lifetime: as NativeBackend.
/// Errors: as NativeBackend.
class SharedMemory {
 public:
  /// Whether all of the tensor is in that memory, without gaps.
  virtual bool is_shared(const at::Tensor& tensor) const = 0;

  /// Offset of this rank's tensor in the shared memory, if is_shared(). All ranks understand it.
  virtual std::optional<std::uint64_t> offset_of(const at::Tensor& tensor) const = 0;
  /// Address in this process of an offset_of() any rank.
  /// Errors: SystemError.
  virtual std::byte* address_of(std::uint64_t offset, std::uint64_t bytes) = 0;

  /// Like all_reduce, from `input` into `output`. If `output` is shared, it must be on all ranks;
  /// then only the parts of `input` that peers need are copied.
  virtual c10::intrusive_ptr<c10d::Work> all_reduce_into(const at::Tensor& output,
                                                         const at::Tensor& input,
                                                         const ScaledReduction& reduction,
                                                         const CallTerms& terms) = 0;

 protected:
  ~SharedMemory() = default;
};

/// Interface of a backend over several machines, at least one of which has several ranks, for what
/// the ranks of a machine do together.
/// Threads: as NativeBackend.
/// Lifetime: as NativeBackend.
/// Errors: as NativeBackend.
class SeveralMachines {
 public:
  /// The group's ranks, by machine, ascending.
  virtual const std::vector<std::vector<int>>& ranks_by_machine() const = 0;
  /// Waits until every rank of this machine has called it.
  virtual c10::intrusive_ptr<c10d::Work> barrier_of_machine(const CallTerms& terms) = 0;
  /// Sums `tensor`, in place, over the ranks that have this rank's place on their machines, in
  /// machine order. For ranks whose place exists on every machine.
  virtual c10::intrusive_ptr<c10d::Work> sum_over_machines(const at::Tensor& tensor,
                                                           const CallTerms& terms) = 0;

 protected:
  ~SeveralMachines() = default;
};

/// The backend interface of ProcessGroup, which has checked the arguments of all calls. C10dBackend
/// adapts a plain c10d::Backend.
/// Threads: one at a time; abort() of c10d() from any.
/// Lifetime: works and tensors keep alive what they need of it.
/// Errors: those of the backend, from a call or in its work.
class NativeBackend {
 public:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  NativeBackend() = default;
  virtual ~NativeBackend() = default;
  NativeBackend(const NativeBackend&) = delete;
  NativeBackend& operator=(const NativeBackend&) = delete;

  /// The same backend for LibTorch: for programs, and for calls without CallTerms.
  virtual c10d::Backend& c10d() = 0;
  virtual bool takes_cuda() const { return false; }
  /// Whether the backend itself fails on every rank if ranks make different calls. Then it also
  /// gets calls of no elements.
  virtual bool compares_calls() const { return false; }
  /// Whether it has running calls for which its destructor would wait.
  virtual bool is_busy() { return false; }
  /// Whether the connections to all other ranks are lost: an incomplete call that began at `begun`
  /// stays so, and the backend may not notice itself. Ask twice a second. Threads: any.
  virtual bool is_cut_off(std::chrono::steady_clock::time_point /*begun*/) { return false; }
  /// Best size of an exchange of gradients, in bytes; 0: the backend has no preference.
  virtual std::int64_t bucket_bytes() const { return 0; }
  /// Null: ranks do not share memory.
  virtual SharedMemory* shared_memory() { return nullptr; }
  /// Null: all ranks share memory, or no two do.
  virtual SeveralMachines* several_machines() { return nullptr; }

  virtual WorkPtr broadcast(const Tensor& tensor, int source, const CallTerms& terms) = 0;
  virtual WorkPtr all_reduce(const Tensor& tensor, ReduceOp op, const CallTerms& terms) = 0;
  virtual WorkPtr reduce(const Tensor& tensor, int target, ReduceOp op, const CallTerms& terms) = 0;
  virtual WorkPtr all_gather(const Tensors& outputs, const Tensor& input,
                             const CallTerms& terms) = 0;
  virtual WorkPtr all_gather_into_tensor(const Tensor& output, const Tensor& input,
                                         const CallTerms& terms) = 0;
  /// All-gathers what the ranks compare before a call, where possible past the calls under way.
  virtual WorkPtr gather_for_check(const Tensor& output, const Tensor& input,
                                   const CallTerms& terms) {
    return all_gather_into_tensor(output, input, terms);
  }
  virtual WorkPtr gather(const Tensors& outputs, const Tensor& input, int target,
                         const CallTerms& terms) = 0;
  virtual WorkPtr scatter(const Tensor& output, const Tensors& inputs, int source,
                          const CallTerms& terms) = 0;
  virtual WorkPtr reduce_scatter(const Tensor& output, const Tensors& inputs, ReduceOp op,
                                 const CallTerms& terms) = 0;
  virtual WorkPtr reduce_scatter_tensor(const Tensor& output, const Tensor& input, ReduceOp op,
                                        const CallTerms& terms) = 0;
  virtual WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs,
                             const CallTerms& terms) = 0;
  virtual WorkPtr all_to_all_single(const Tensor& output, const Tensor& input,
                                    const std::vector<std::int64_t>& output_splits,
                                    const std::vector<std::int64_t>& input_splits,
                                    const CallTerms& terms) = 0;
  virtual WorkPtr barrier(const CallTerms& terms) = 0;
  virtual WorkPtr send(const Tensor& tensor, int target, int tag, const CallTerms& terms) = 0;
  virtual WorkPtr recv(const Tensor& tensor, int source, int tag, const CallTerms& terms) = 0;
  /// Receives from the rank that sends first; the work's sourceRank() is that rank.
  virtual WorkPtr recv_from_any(const Tensor& tensor, int tag, const CallTerms& terms) = 0;
};

}  // namespace lockstep::inline internal
