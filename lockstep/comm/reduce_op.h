#pragma once

#include <cstdint>

namespace lockstep {

/// How a collective combines the elements of all ranks.
/// - kSum, kProduct: every dtype.
/// - kAvg: the sum divided by the number of ranks; floating-point dtypes.
/// - kMin, kMax: NaN if any rank has NaN, in any order of ranks, as at::minimum and at::maximum
///   (nccl: as NCCL does).
/// - kBand, kBor, kBxor: bitwise; integer dtypes and bool.
///
/// If several ranks have a NaN, or some have +0 and some -0, the backend chooses which one results.
/// All ranks get the same bits.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

/// c10d's name of the operation, such as "SUM"; "?" for a value that is none.
const char* name_of(ReduceOp op);

}  // namespace lockstep
