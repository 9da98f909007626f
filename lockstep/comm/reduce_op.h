#pragma once

#include <cstdint>

namespace lockstep {

/// kAvg divides the sum by the number of ranks (floating point only); kBand, kBor and kBxor are
/// bitwise (integers and bool only).
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

/// "SUM", as in c10d.
const char* reduce_op_name(ReduceOp op);

}  // namespace lockstep
