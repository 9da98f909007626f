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

/// The seam between the collectives of a ProcessGroup and what carries them out.
namespace lockstep::inline internal {

/// What a call brings beside its tensors.
struct CallTerms {
  std::chrono::milliseconds timeout;
  /// Compared between ranks by a backend that compares calls itself; empty: the call has no name.
  std::string_view name = {};
  /// As CollectiveOptions has it.
  bool deadline_from_wait = false;
};

/// How all_reduce_into reduces.
struct ScaledReduction {
  ReduceOp op = ReduceOp::kSum;
  /// Only with kAvg: what the average is multiplied by, in the same pass; the same on every rank.
  double scale = 1;
  /// One float64 on the CPU. The squares of the results that this rank computes are added to it in
  /// the same pass; the ranks together add each square once. Results are of a floating-point dtype.
  at::Tensor sum_of_squares = {};
};

/// The ability of a backend whose ranks reach each other's tensors without a copy, where these lie
/// in memory of c10d::Backend::allocateTensor. Threads, lifetime, errors: as NativeBackend.
class SharedMemory {
 public:
  /// Whether all of the tensor lies in that memory, without gaps.
  virtual bool is_shared(const at::Tensor& tensor) const = 0;

  /// Where in memory that all ranks know `tensor` of this rank begins, if is_shared().
  virtual std::optional<std::uint64_t> offset_of(const at::Tensor& tensor) const = 0;
  /// The address in this process of such a place, of any rank. Errors: SystemError.
  virtual const std::byte* address_of(std::uint64_t offset, std::uint64_t bytes) = 0;

  /// As all_reduce, from `input` into `output`. If `output` is shared, all ranks promise that
  /// theirs is; then only the parts of `input` that peers need are copied.
  virtual c10::intrusive_ptr<c10d::Work> all_reduce_into(const at::Tensor& output,
                                                         const at::Tensor& input,
                                                         const ScaledReduction& reduction,
                                                         const CallTerms& terms) = 0;

 protected:
  ~SharedMemory() = default;
};

/// What a ProcessGroup calls. Its collectives are those of ProcessGroup, which has checked the
/// arguments. Backends that are a c10d::Backend and no more are wrapped by C10dBackend.
/// Threads: one at a time; abort() of c10d() from any.
/// Lifetime: works and tensors keep alive what they need of it.
/// Errors: from a call, or in its work: those of the backend.
class NativeBackend {
 public:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  NativeBackend() = default;
  virtual ~NativeBackend() = default;
  NativeBackend(const NativeBackend&) = delete;
  NativeBackend& operator=(const NativeBackend&) = delete;

  /// The same backend as LibTorch sees it: for programs, and for what needs no terms.
  virtual c10d::Backend& c10d() = 0;
  virtual bool takes_cuda() const { return false; }
  /// Whether the backend itself raises on every rank if ranks make different calls. Then calls of
  /// no elements reach it too.
  virtual bool compares_calls() const { return false; }
  /// Whether calls are under way for which its destructor would wait.
  virtual bool is_busy() { return false; }
  /// Best size of an exchange of gradients, in bytes; 0: the backend has no preference.
  virtual std::int64_t bucket_bytes() const { return 0; }
  /// Null: ranks do not share memory.
  virtual SharedMemory* shared_memory() { return nullptr; }

  virtual WorkPtr broadcast(const Tensor& tensor, int source, const CallTerms& terms) = 0;
  virtual WorkPtr all_reduce(const Tensor& tensor, ReduceOp op, const CallTerms& terms) = 0;
  virtual WorkPtr reduce(const Tensor& tensor, int target, ReduceOp op, const CallTerms& terms) = 0;
  virtual WorkPtr all_gather(const Tensors& outputs, const Tensor& input,
                             const CallTerms& terms) = 0;
  virtual WorkPtr all_gather_into_tensor(const Tensor& output, const Tensor& input,
                                         const CallTerms& terms) = 0;
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
  /// From whichever rank sends first; the work's sourceRank() is that rank.
  virtual WorkPtr recv_from_any(const Tensor& tensor, int tag, const CallTerms& terms) = 0;
};

}  // namespace lockstep::inline internal
