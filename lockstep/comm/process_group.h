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

/// Options that every collective has. Names are torch.distributed's.
struct CollectiveOptions {
  /// Return at once; wait on the Work. Otherwise the returned Work is complete.
  bool async_op = false;
  /// Deadline of this call instead of the group's.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Compared between ranks where calls are, to tell calls of one shape apart; up to 23 letters.
  std::string name = {};
  /// Of a message: its deadline begins with the wait for it, as PyTorch's does, and not with the
  /// call. Work::is_completed() has no deadline then.
  bool deadline_from_wait = false;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  bool async_op = false;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  std::string name = {};
};

struct NewGroupOptions {
  /// As InitOptions::backend; empty: the parent's, or chosen anew where the parent's was chosen.
  std::string backend = {};
  /// Deadline of the group's collectives; unset: the parent's.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Whether collectives are compared between ranks; unset: what the parent was asked for.
  std::optional<bool> check_calls = std::nullopt;
};

/// A set of processes that communicate. A small value: copies refer to the same group.
///
/// Ranks in all calls are ranks within this group, 0 to world_size() - 1. All ranks must make the
/// same calls in the same order, with tensors of the same dtype and, where not said otherwise, the
/// same number of elements. Tensors must be dense and contiguous, of dtype float32, float64,
/// float16, bfloat16, int32, int64, int8, uint8 or bool, and live on the backend's device.
///
/// Whether ranks make the same call is checked before it runs: where operation, dtype, elements,
/// reduction or root differ, every rank gets a UsageError that names both calls, no tensor is
/// touched; the group stays usable, but for shm, whose group has then ended. The backends that do
/// not check calls themselves (gloo, hierarchical, mpi, nccl) need an exchange of 112 bytes for it,
/// about the time of one small all-gather, in which an asynchronous call too waits until all ranks
/// have made it. It is on for CPU backends and off for nccl; check_calls or LOCKSTEP_CHECK_CALLS=0
/// switches it off for a program known to be right: what mismatched calls do then is undefined. All
/// ranks must choose the same. Messages (send, recv) are not checked.
///
/// Threads: one thread at a time per group. Lifetime: the last copy closes the connections.
/// Errors: UsageError for arguments that cannot work, before anything is sent; else as Work::wait.
class ProcessGroup {
 public:
  /// No group; what new_group returns on a rank that is not a member. Only operator bool works.
  ProcessGroup() = default;
  explicit operator bool() const { return state_ != nullptr; }

  int rank() const;
  int world_size() const;
  /// This rank's number on its machine, from 0, whatever the group.
  int local_rank() const;
  /// The address of this machine towards rank 0's: where others reach it. Empty where ranks met by
  /// a file or a store, and alone.
  const std::string& local_address() const;
  const std::string& name() const;
  const std::string& backend_name() const;
  /// Where the backend expects tensors: the CPU, or this rank's CUDA device.
  c10::Device device() const;
  std::chrono::milliseconds timeout() const;

  /// Copies `tensor` from rank `source` to all.
  Work broadcast(at::Tensor tensor, int source, const CollectiveOptions& options = {}) const;

  /// Leaves the reduction over all ranks in `tensor` on every rank.
  Work all_reduce(at::Tensor tensor, const ReduceOptions& options = {}) const;

  /// Leaves the reduction in `tensor` on rank `target`; on other ranks its contents are undefined.
  Work reduce(at::Tensor tensor, int target, const ReduceOptions& options = {}) const;

  /// outputs[r] becomes rank r's `input`. world_size() outputs of input's shape.
  Work all_gather(std::vector<at::Tensor> outputs, at::Tensor input,
                  const CollectiveOptions& options = {}) const;

  /// `output`, of world_size() × input.numel() elements, becomes all inputs in rank order.
  Work all_gather_into_tensor(at::Tensor output, at::Tensor input,
                              const CollectiveOptions& options = {}) const;

  /// On rank `target` outputs[r] becomes rank r's `input`; elsewhere `outputs` must be empty.
  Work gather(std::vector<at::Tensor> outputs, at::Tensor input, int target,
              const CollectiveOptions& options = {}) const;

  /// `output` becomes inputs[rank()] of rank `source`; elsewhere `inputs` must be empty.
  Work scatter(at::Tensor output, std::vector<at::Tensor> inputs, int source,
               const CollectiveOptions& options = {}) const;

  /// `output` becomes the reduction over ranks of their inputs[rank()].
  Work reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                      const ReduceOptions& options = {}) const;

  /// As reduce_scatter, with the inputs as world_size() equal parts of one tensor.
  Work reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                             const ReduceOptions& options = {}) const;

  /// outputs[r] becomes inputs[rank()] of rank r. Sizes may differ per pair of ranks.
  Work all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                  const CollectiveOptions& options = {}) const;

  /// As all_to_all along dimension 0 of one tensor, in equal parts when the splits are empty.
  Work all_to_all_single(at::Tensor output, at::Tensor input,
                         std::vector<std::int64_t> output_splits = {},
                         std::vector<std::int64_t> input_splits = {},
                         const CollectiveOptions& options = {}) const;

  /// Returns when every rank has called it.
  Work barrier(const CollectiveOptions& options = {}) const;

  /// A barrier that, when its deadline passes, throws a TimeoutError naming the ranks that did not
  /// come: on every rank that waits. Goes through the store: slower than barrier(), for diagnosis.
  void monitored_barrier(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Matched in order per (peer, tag). A rank cannot send to itself.
  Work send(at::Tensor tensor, int target, int tag = 0,
            const CollectiveOptions& options = {}) const;
  Work recv(at::Tensor tensor, int source, int tag = 0,
            const CollectiveOptions& options = {}) const;

  /// A group of some of these ranks, renumbered in the order given. Every rank of this group must
  /// call it with the same ranks, members or not; non-members get an empty ProcessGroup.
  ProcessGroup new_group(const std::vector<int>& ranks, const NewGroupOptions& options = {}) const;

  /// A tensor of `numel` elements that this group's collectives reach without a copy where the
  /// backend can (shm can); an ordinary one on device() otherwise. Contents are undefined. It may
  /// outlive the group. Errors: SystemError when shared memory is short.
  at::Tensor allocate_tensor(std::int64_t numel, at::ScalarType dtype) const;

  /// Whether allocate_tensor gives memory that peers reach without a copy.
  bool shares_memory() const;

  /// The c10d objects underneath; null in a group of one rank. Waits for keys call while_waiting.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;
  c10::intrusive_ptr<c10d::Store> c10d_store() const;

  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  friend struct internal::ProcessGroupAccess;
  const State& state(const char* operation) const;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
