#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

#include "lockstep/optim/kernels/update_kernels.h"

/// Updates a range of elements of a parameter, with its gradient and its states; independent of
/// optimizers and tensors. Ranges may be updated in any order and by several processes; the bits
/// are those of one update of the whole parameter if each range begins at a multiple of
/// kRangeElements.
namespace lockstep::inline internal {

/// ATen's fused kernels treat elements that do not fill a vector separately.
inline constexpr std::int64_t kRangeElements = 64;

struct UpdateRange {
  at::ScalarType dtype;        ///< Of parameter and gradient: float32, float64, bfloat16, float16.
  at::ScalarType state_dtype;  ///< `dtype`, or float32 where that is bfloat16 or float16.
  void* parameter;
  const void* gradient;
  /// The states of the update's struct; null: there is none.
  std::array<void*, kMostStates> states;
  std::int64_t elements;
  bool maximize = false;
};

/// Whether ATen's fused SGD for CPUs is wrong with momentum: for these dtypes it reads and writes
/// half of the momentum at other elements (LibTorch 2.13).
inline bool loses_momentum(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Whether Lockstep's kernel updates such a range, for which a call is cheap. Else ATen's does: for
/// SGD, Adam and Adagrad if states have the parameter's dtype and that is not float32.
template <class Update>
bool has_own_kernel(const Update&, const UpdateRange&) {
  return true;
}
bool has_own_kernel(const SgdUpdate& update, const UpdateRange& range);
bool has_own_kernel(const AdamUpdate& update, const UpdateRange& range);
bool has_own_kernel(const AdagradUpdate& update, const UpdateRange& range);

/// Updates a range in one pass over memory, with LibTorch's threads. SGD, Adam and Adagrad have the
/// bits of ATen's fused kernels if states have the parameter's dtype.
void update_range(const SgdUpdate& update, const UpdateRange& range);
void update_range(const AdamUpdate& update, const UpdateRange& range);
void update_range(const AdagradUpdate& update, const UpdateRange& range);
void update_range(const NAdamUpdate& update, const UpdateRange& range);
void update_range(const RAdamUpdate& update, const UpdateRange& range);
void update_range(const AdamaxUpdate& update, const UpdateRange& range);
void update_range(const AdadeltaUpdate& update, const UpdateRange& range);
void update_range(const RmspropUpdate& update, const UpdateRange& range);
void update_range(const LionUpdate& update, const UpdateRange& range);
/// LAMB's second pass.
void update_range(const LambScaledUpdate& update, const UpdateRange& range);

/// The same of several ranges of the same dtypes and states, which may be of several parameters.
template <class Update>
void update_ranges(const Update& update, std::span<const UpdateRange> ranges) {
  for (const UpdateRange& range : ranges) update_range(update, range);
}
/// With one call, if ATen's kernel is called.
void update_ranges(const SgdUpdate& update, std::span<const UpdateRange> ranges);
void update_ranges(const AdamUpdate& update, std::span<const UpdateRange> ranges);
void update_ranges(const AdagradUpdate& update, std::span<const UpdateRange> ranges);

/// Sums of squares of the parameter's elements and of its update's.
struct LambSquares {
  double parameter = 0;
  double update = 0;
};
/// The sums are those of blocks of this many elements, added in order.
inline constexpr std::int64_t kLambBlockElements = std::int64_t{1} << 15;
/// LAMB's first pass, over the states only. The sums of all ranges of a parameter give its trust
/// ratio. The same bits for any number of threads.
LambSquares update_lamb_states(const LambUpdate& update, const UpdateRange& range);
/// 1 if a norm is 0.
double lamb_trust_ratio(const LambSquares& squares);

/// A kernel, for tests; null if this machine does not support the instruction set.
UpdateKernel find_update_kernel(InstructionSet set, UpdateKind kind, UpdateElements elements);
UpdateElements update_elements(at::ScalarType dtype, at::ScalarType state_dtype);

}  // namespace lockstep::inline internal
