#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::shm {

/// Where a rank's tensor lies, for an all-reduce.
struct ReduceBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  ///< may be the input
  /// Where `output` lies in the segment, if it does.
  std::optional<std::uint64_t> shared_offset = std::nullopt;
  /// Where `input` lies in it: needed with call.converts, not read otherwise.
  std::uint64_t input_offset = 0;
  /// The squares of the results that this rank reduces are added to it, where it is given: those of
  /// all ranks cover the results once. Of floating-point numbers only.
  double* sum_of_squares = nullptr;
};

/// Up to this many bytes a tensor is copied even when it is shared: two trips of a cache line less.
inline constexpr std::uint64_t kEagerBytes = 4096;

/// An all-reduce in rank order, so that all ranks get the same bits. Four ways, after the size and
/// after where tensors lie (as in NCCL's LL, LL128 and Simple; Hu et al., arXiv 2507.04786):
///   eager    in the entry or a slot; every rank reduces everything: one round
///   shared   each rank reduces its part of all tensors where they lie: one round, no copy
///   chunked  each rank copies the others' parts to slots, reduces its own, and copies the results
///            out, a chunk at a time: reduce-scatter and all-gather, pipelined
///   swapped  of two ranks each copies its tensor to slots, and reduces everything, a chunk at a
///   time
/// Up to kEagerBytes a tensor takes the eager way, unless it is converted. Others take the shared
/// way when they are shared on all ranks, which the ranks find out in the first round. With
/// call.in_shared_memory they promise it beforehand: then the next collective may be posted before
/// this one's peers have come, and `input` may be private: of it only the parts of peers are copied
/// to `output`, and the rank's own is read where it is. With call.converts too, inputs and outputs
/// are both shared: nothing is copied, each rank reads its part of all inputs and writes it,
/// converted, to all outputs.
std::unique_ptr<Operation> make_all_reduce(const Call& call, const Reduction& reduction,
                                           const ReduceBuffers& buffers);

}  // namespace lockstep::shm
