#pragma once

#include <cstddef>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"
#include "lockstep/comm/reduce_op.h"

/// What the dispatch in reduce_kernel.cpp and the files compiled for one instruction set each agree
/// on. Plain pointers: an inline function of a shared header, compiled there with wider
/// instructions, could be the copy that the linker keeps for everybody.
namespace lockstep::inline internal {

struct ReduceCall {
  const std::byte* const* sources;
  std::size_t source_count;    ///< at least 1
  std::byte* const* targets;   ///< the ordinary ones first
  std::size_t ordinary_count;  ///< targets left to the caches
  std::size_t streamed_count;  ///< targets written past them; each as far from a 64-byte line
  std::size_t elements;
  double factor;  ///< of kAvg
};

using ReduceKernel = void (*)(const ReduceCall& call);

/// Adds the square of values[i] to lanes[i mod kSquareLanes].
using SquaresKernel = void (*)(const std::byte* values, std::size_t elements, double* lanes);

using CopyKernel = void (*)(std::byte* target, const std::byte* source, std::size_t bytes);

/// Doubles among which a sum of squares is spread: a multiple of every vector's lanes, so that the
/// order of the additions is the same for all instruction sets, and enough additions are
/// independent of each other.
inline constexpr std::size_t kSquareLanes = 64;

inline constexpr std::size_t kCacheLineBytes = 64;

struct KernelTable {
  /// Null where there is none: see reduce_kernel.h for which there are.
  ReduceKernel (*find_reduce)(Element source, Element target, ReduceOp op);
  /// Null but for floating-point elements.
  SquaresKernel (*find_squares)(Element element);
  CopyKernel copy_non_temporal;
};

/// The table of a supported instruction set.
const KernelTable& kernel_table(InstructionSet set);

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace lockstep::inline internal
