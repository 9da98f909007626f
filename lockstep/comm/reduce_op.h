#pragma once

namespace lockstep {

/// kAvg divides the sum by the number of ranks (floating point only); kBand, kBor and kBxor are
/// bitwise (integers and bool only).
enum class ReduceOp { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

}  // namespace lockstep
