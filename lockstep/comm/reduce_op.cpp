#include "lockstep/comm/reduce_op.h"

#include <array>

namespace lockstep {

const char* reduce_op_name(ReduceOp op) {
  constexpr std::array kNames = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"};
  return kNames.at(static_cast<std::size_t>(op));
}

}  // namespace lockstep
