#include "lockstep/ddp/graph_agreement.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace lockstep {

ObservedGraph agree_on_graph(const ProcessGroup& group, const ObservedGraph& own) {
  if (group.world_size() == 1) return own;
  const auto count = static_cast<std::int64_t>(own.order.size());
  const at::Tensor order = at::empty({count}, at::kLong);
  const at::Tensor flags = at::empty({2 * count}, at::kInt);
  std::copy(own.order.begin(), own.order.end(), order.mutable_data_ptr<std::int64_t>());
  auto* const own_flags = flags.mutable_data_ptr<int>();
  std::copy(own.has_gradient.begin(), own.has_gradient.end(), own_flags);
  std::copy(own.is_sparse.begin(), own.is_sparse.end(), own_flags + count);

  const at::Tensor order_on_device = order.to(group.device());
  const at::Tensor flags_on_device = flags.to(group.device());
  group.broadcast(order_on_device, 0);
  group.all_reduce(flags_on_device, {.op = ReduceOp::kMax});

  const at::Tensor agreed_order = order_on_device.to(at::kCPU);
  const at::Tensor agreed_flags = flags_on_device.to(at::kCPU);
  const auto* const first = agreed_order.const_data_ptr<std::int64_t>();
  const auto* const flag = agreed_flags.const_data_ptr<int>();
  ObservedGraph agreed{.order = {first, first + count}, .has_gradient = {}, .is_sparse = {}};
  for (std::int64_t i = 0; i < count; ++i) {
    agreed.has_gradient.push_back(flag[i] != 0);
    agreed.is_sparse.push_back(flag[count + i] != 0);
  }
  return agreed;
}

}  // namespace lockstep
