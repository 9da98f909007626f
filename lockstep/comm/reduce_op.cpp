#include "lockstep/comm/reduce_op.h"

#include <array>

namespace lockstep {

const char* name_of(ReduceOp op) {
  constexpr std::array kNames = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"};
  const auto number = static_cast<std::size_t>(op);
  return number < kNames.size() ? kNames[number] : "?";  // another rank may send any number
}

}  // namespace lockstep
