#pragma once

#include <cstdint>

namespace lockstep {

/// kAvg divides the sum by the number of ranks (floating point only); kBand, kBor and kBxor are
/// bitwise (integers and bool only).
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

}  // namespace lockstep
