#include "bench/all_reduce/control.h"

#include <ATen/ops/from_blob.h>

namespace lockstep::bench {

std::vector<double> Control::max(std::vector<double> values) const {
  const auto tensor =
      at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  group_.all_reduce(tensor, {.op = ReduceOp::kMax});
  return values;
}

}  // namespace lockstep::bench
