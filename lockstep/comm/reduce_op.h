#pragma once

#include <cstdint>

namespace lockstep {

/// kAvg divides the sum by the number of ranks (floating point only); kBand, kBor and kBxor are
/// bitwise (integers and bool only). kMin and kMax give NaN where any rank has one, as at::minimum
/// and at::maximum do, in whatever order ranks come (nccl: as NCCL does); which NaN, and which sign
/// a zero has that is +0 on some ranks and -0 on others, is the backend's choice, the same on all
/// ranks.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

/// "SUM", as in c10d.
const char* reduce_op_name(ReduceOp op);

}  // namespace lockstep
