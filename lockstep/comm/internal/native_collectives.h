#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/comm/process_group.h"

/// Collectives for the exchange of gradients. Their callers know that all ranks make the same call:
/// it is not compared, unless the backend itself does (shm), so it starts without waiting for other
/// ranks.
/// Threads: as ProcessGroup.
/// Lifetime: as ProcessGroup.
/// Errors: as ProcessGroup.
namespace lockstep::inline internal {

/// Like ProcessGroup::all_reduce, from `input` into `output`, of equal size and dtype, possibly the
/// same tensor. If `output` is shared, it must be on every rank; then only the parts of `input`
/// that peers need are copied, and no call waits for another. If both are shared, a float16 or
/// bfloat16 `input` may be reduced into a float32 `output`, in float32 without further rounding. A
/// scale other than 1 and sum_of_squares need a group that shares memory.
Work all_reduce_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                     const ScaledReduction& reduction = {}, const CollectiveOptions& options = {});

/// Like ProcessGroup::all_gather_into_tensor.
Work all_gather_uncompared(const ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, const CollectiveOptions& options = {});

/// Like ProcessGroup::all_to_all_single, in equal parts.
Work all_to_all_uncompared(const ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, const CollectiveOptions& options = {});

/// Like ProcessGroup::recv, from the rank that sends first. `message` becomes the backend's work,
/// whose sourceRank() is that rank once the returned Work is complete; null if nothing is received.
Work recv_from_any(const ProcessGroup& group, const at::Tensor& tensor, int tag,
                   const CollectiveOptions& options, c10::intrusive_ptr<c10d::Work>& message);

/// Whether peers access this tensor without a copy: all of it is in memory of
/// ProcessGroup::allocate_tensor, in a group that shares memory.
bool is_shared(const ProcessGroup& group, const at::Tensor& tensor);

/// For accessing peers' tensors in place. shared_offset: offset of this rank's tensor, if
/// is_shared(), which all ranks understand. shared_address: address in this process of any rank's
/// offset, valid while the group exists. The callers must synchronize access.
/// Errors: SystemError.
std::optional<std::uint64_t> shared_offset(const ProcessGroup& group, const at::Tensor& tensor);
std::byte* shared_address(const ProcessGroup& group, std::uint64_t offset, std::uint64_t bytes);

/// The group's ranks, by machine, if it has several machines, at least one with several ranks; else
/// empty.
std::vector<std::vector<int>> ranks_by_machine(const ProcessGroup& group);

/// Whether each rank is known to be on a machine of its own, with which no other shares memory.
bool has_rank_per_machine(const ProcessGroup& group);

/// Like ProcessGroup::barrier, of the ranks of this machine if the group has several.
void barrier_of_machine(const ProcessGroup& group, const CollectiveOptions& options);

/// See SeveralMachines.
Work sum_over_machines(const ProcessGroup& group, const at::Tensor& tensor,
                       const CollectiveOptions& options);

/// Best size of an exchange of gradients, in bytes; 0: the backend has no preference.
std::int64_t bucket_bytes(const ProcessGroup& group);

}  // namespace lockstep::inline internal
