#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/internal/native_backend.h"
#include "lockstep/comm/process_group.h"

/// Collectives for the parts of Lockstep that exchange gradients. Their callers know that all ranks
/// make the same call: it is not compared, unless the backend itself does (shm), so it starts
/// without waiting for other ranks.
/// Threads, lifetime, errors: as ProcessGroup.
namespace lockstep::inline internal {

/// As ProcessGroup::all_reduce, from `input` into `output`, of the same size and dtype; they may be
/// the same tensor. If `output` is shared, it must be on every rank; then only the parts of `input`
/// that peers need are copied, and no call waits for another. If both are shared, a float16 or
/// bfloat16 `input` may go into a float32 `output`: it is reduced in float32 and not rounded again.
/// A scale other than 1 and sum_of_squares need a group that shares memory.
Work all_reduce_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                     const ScaledReduction& reduction = {}, const CollectiveOptions& options = {});

/// As ProcessGroup::all_gather_into_tensor.
Work all_gather_uncompared(const ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, const CollectiveOptions& options = {});

/// As ProcessGroup::recv, from whichever rank sends first. `message` becomes the backend's work, whose
/// sourceRank() is that rank once the returned Work is complete; null where nothing is moved.
Work recv_from_any(const ProcessGroup& group, const at::Tensor& tensor, int tag,
                   const CollectiveOptions& options, c10::intrusive_ptr<c10d::Work>& message);

/// Whether peers reach this tensor without a copy: all of it lies in memory of
/// ProcessGroup::allocate_tensor, in a group that shares memory.
bool is_shared(const ProcessGroup& group, const at::Tensor& tensor);

/// For reading peers' tensors where they lie: where in memory that all ranks know this rank's
/// tensor begins, if is_shared(); and the address in this process of such a place, of any rank,
/// as long as the group exists. What is there, and until when, is for the callers to arrange.
/// Errors: SystemError.
std::optional<std::uint64_t> shared_offset(const ProcessGroup& group, const at::Tensor& tensor);
const std::byte* shared_address(const ProcessGroup& group, std::uint64_t offset,
                                std::uint64_t bytes);

/// Best size of an exchange of gradients, in bytes; 0: the backend has no preference.
std::int64_t bucket_bytes(const ProcessGroup& group);

}  // namespace lockstep::inline internal
