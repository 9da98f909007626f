#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::shm {

/// A rank's tensors in an all-reduce.
struct ReduceBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  ///< may be the input
  /// Offset of `output` in the segment, if it is there.
  std::optional<std::uint64_t> shared_offset = std::nullopt;
  /// Offset of `input` in the segment; used only with call.converts.
  std::uint64_t input_offset = 0;
  /// If given, the squares of the results that this rank reduces are added to it; over all ranks
  /// each result once. Floating-point elements only.
  double* sum_of_squares = nullptr;
};

/// Up to this size a tensor is copied even if it is shared: that saves two transfers of a cache
/// line.
inline constexpr std::uint64_t kEagerBytes = 4096;

/// An all-reduce in rank order, so that all ranks get the same bits. One of four algorithms, by
/// size and by where tensors are (as NCCL's LL, LL128 and Simple; Hu et al., arXiv 2507.04786):
/// - eager: data in the entry or a slot; every rank reduces everything; one round.
/// - shared: each rank reduces its part of all tensors in place; one round, no copy.
/// - chunked: each rank copies the others' parts to slots, reduces its own, and copies the results
///   out, chunk by chunk: reduce-scatter and all-gather, pipelined.
/// - swapped: each of two ranks copies its tensor to slots and reduces everything, chunk by chunk.
///
/// Eager up to kEagerBytes, unless elements are converted. Else shared if the tensors are shared on
/// all ranks, which the ranks find out in the first round. With call.in_shared_memory all ranks
/// promise it: then the next collective may be posted before the peers of this one have arrived,
/// and `input` may be private. Only the parts of `input` that peers reduce are then copied to
/// `output`; the rank's own part is read from `input`. With call.converts too, inputs and outputs
/// are both shared and nothing is copied: each rank reads its part of all inputs and writes it,
/// converted, to all outputs.
std::unique_ptr<Operation> make_all_reduce(const Call& call, const Reduction& reduction,
                                           const ReduceBuffers& buffers);

}  // namespace lockstep::shm
