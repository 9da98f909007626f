#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/comm/work.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep {

inline namespace internal {
struct ProcessGroupAccess;
}

/// Options of every collective. Names are torch.distributed's.
struct CollectiveOptions {
  /// Return at once; call wait() on the Work. If false, the returned Work is complete.
  bool async_op = false;
  /// Timeout of this call. Unset: the group's.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Distinguishes calls of the same shape: if calls are checked, names must be equal on all ranks.
  /// At most 23 bytes.
  std::string name = {};
  /// For send and recv: the timeout starts at wait(), as in PyTorch, instead of at the call.
  /// Work::is_completed() has no deadline then.
  bool deadline_from_wait = false;
};

/// Options of collectives that reduce: those of CollectiveOptions and the operation.
struct ReduceOptions {
  /// How elements are combined.
  ReduceOp op = ReduceOp::kSum;
  /// See CollectiveOptions.
  bool async_op = false;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  std::string name = {};
};

/// Options of ProcessGroup::new_group. All ranks must pass the same.
struct NewGroupOptions {
  /// See InitOptions::backend. Empty: the parent's; if the parent's was chosen, it is chosen again
  /// for these ranks.
  std::string backend = {};
  /// Timeout of the group's collectives. Unset: the parent's.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Compare each collective between ranks before it runs. Unset: as the parent was asked to.
  std::optional<bool> check_calls = std::nullopt;
};

/// A set of ranks that communicate through collectives and messages. Copies refer to the same
/// group.
///
/// Rank arguments are ranks within this group, 0 to world_size() - 1. All ranks must make the same
/// calls in the same order, with tensors of the same dtype and, unless a method says otherwise, the
/// same number of elements. Tensors must be dense and contiguous, on device() (gloo takes CUDA
/// tensors too), of dtype float32, float64, float16, bfloat16, int32, int64, int8, uint8 or bool.
///
/// Consistency check: before a collective runs, the ranks compare operation, dtype, number of
/// elements, reduction, root and name. On a mismatch every rank gets a UsageError that names both
/// calls, and no tensor is modified. The group stays usable, except with shm, where it has then
/// failed. shm checks at no extra cost. gloo, hierarchical, mpi and nccl exchange 112 bytes per
/// call, about the time of a small all-gather; an asynchronous call waits for it too. The check is
/// on for CPU backends and off for nccl. InitOptions::check_calls or LOCKSTEP_CHECK_CALLS changes
/// it; all ranks must choose the same. Without the check, mismatched calls have undefined
/// behaviour. Messages (send, recv) are not checked.
///
/// Threads: one thread at a time per group.
/// Lifetime: the connections close when the last copy is destroyed.
/// Errors: UsageError for invalid arguments, before anything is sent; else see Work::wait.
class ProcessGroup {
 public:
  /// An empty group; new_group returns one on ranks that are not members. Only operator bool works.
  ProcessGroup() = default;
  explicit operator bool() const { return state_ != nullptr; }

  /// This rank, 0 to world_size() - 1.
  int rank() const;
  /// Number of ranks in the group.
  int world_size() const;
  /// This rank's number among the job's ranks on its machine, from 0; the same in every group.
  int local_rank() const;
  /// This machine's address on the route to rank 0's machine: other machines can reach it there.
  /// Empty for a job of one rank, and if the ranks met through a file or a store.
  const std::string& local_address() const;
  /// The group's name in errors and logs: "default", "default/0" for its first new_group(), ….
  const std::string& name() const;
  /// "shm", "hierarchical", "gloo", "nccl" or "mpi", as in InitOptions::backend.
  const std::string& backend_name() const;
  /// Where the backend takes tensors: the CPU, or this rank's CUDA device.
  c10::Device device() const;
  /// Timeout of collectives that give none.
  std::chrono::milliseconds timeout() const;

  /// Copies `tensor` of rank `source` to all ranks.
  Work broadcast(at::Tensor tensor, int source, const CollectiveOptions& options = {}) const;

  /// Reduces `tensor` over all ranks, in place, on every rank.
  Work all_reduce(at::Tensor tensor, const ReduceOptions& options = {}) const;

  /// Reduces `tensor` over all ranks, in place, on rank `target`. On other ranks its contents are
  /// undefined afterwards.
  Work reduce(at::Tensor tensor, int target, const ReduceOptions& options = {}) const;

  /// Copies rank r's `input` to outputs[r], on every rank. Needs world_size() outputs of input's
  /// size.
  Work all_gather(std::vector<at::Tensor> outputs, at::Tensor input,
                  const CollectiveOptions& options = {}) const;

  /// Concatenates all inputs in rank order: `output` has world_size() × input.numel() elements.
  Work all_gather_into_tensor(at::Tensor output, at::Tensor input,
                              const CollectiveOptions& options = {}) const;

  /// Copies rank r's `input` to outputs[r] on rank `target`; `outputs` must be empty on other
  /// ranks.
  Work gather(std::vector<at::Tensor> outputs, at::Tensor input, int target,
              const CollectiveOptions& options = {}) const;

  /// Copies inputs[r] of rank `source` to rank r's `output`; `inputs` must be empty on other ranks.
  Work scatter(at::Tensor output, std::vector<at::Tensor> inputs, int source,
               const CollectiveOptions& options = {}) const;

  /// Reduces inputs[r] over all ranks into rank r's `output`. Needs world_size() inputs of output's
  /// size.
  Work reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                      const ReduceOptions& options = {}) const;

  /// Like reduce_scatter, with one input tensor: rank r gets its r-th of world_size() equal parts.
  Work reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                             const ReduceOptions& options = {}) const;

  /// Copies inputs[r] of this rank to outputs[rank()] of rank r. Each pair of ranks may have its
  /// own size.
  Work all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                  const CollectiveOptions& options = {}) const;

  /// Like all_to_all, along dimension 0 of one tensor. Splits are numbers of rows per rank; empty:
  /// equal.
  Work all_to_all_single(at::Tensor output, at::Tensor input,
                         std::vector<std::int64_t> output_splits = {},
                         std::vector<std::int64_t> input_splits = {},
                         const CollectiveOptions& options = {}) const;

  /// Waits until every rank has called it.
  Work barrier(const CollectiveOptions& options = {}) const;

  /// A barrier that finds late ranks: after the timeout, each waiting rank gets a TimeoutError with
  /// the ranks that are missing. It goes through the store, so it is slower than barrier().
  void monitored_barrier(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Sends `tensor` to rank `target`, which must call recv. Messages match in order per (peer,
  /// tag). A rank cannot send to itself.
  Work send(at::Tensor tensor, int target, int tag = 0,
            const CollectiveOptions& options = {}) const;
  /// Receives the next message from rank `source` with this tag into `tensor`.
  Work recv(at::Tensor tensor, int source, int tag = 0,
            const CollectiveOptions& options = {}) const;

  /// Creates a group of some of these ranks, numbered in the given order. Every rank of this group
  /// must call it with the same ranks, members or not. Non-members get an empty ProcessGroup.
  ProcessGroup new_group(const std::vector<int>& ranks, const NewGroupOptions& options = {}) const;

  /// Allocates a 1-D tensor of `numel` elements, uninitialized. With shm and hierarchical it is in
  /// shared memory, and collectives access it without a copy; else it is an ordinary tensor on
  /// device().
  /// Lifetime: it may outlive the group.
  /// Errors: SystemError if shared memory is short.
  at::Tensor allocate_tensor(std::int64_t numel, at::ScalarType dtype) const;

  /// Whether all ranks share the memory that allocate_tensor returns.
  bool shares_memory() const;

  /// The underlying c10d backend; null in a group of one rank.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;
  /// The underlying c10d store; null in the default group of a job of one rank. Its waits call
  /// InitOptions::while_waiting.
  c10::intrusive_ptr<c10d::Store> c10d_store() const;

  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  friend struct internal::ProcessGroupAccess;
  const State& state(const char* operation) const;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
