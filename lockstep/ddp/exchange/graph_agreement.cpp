#include "lockstep/ddp/exchange/graph_agreement.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {

ObservedGraph agree_on_graph(const ProcessGroup& group, const ObservedGraph& own) {
  if (group.world_size() == 1) return own;
  const auto count = static_cast<std::int64_t>(own.order.size());
  const at::Tensor order = at::empty({count}, at::kLong);
  std::copy(own.order.begin(), own.order.end(), order.mutable_data_ptr<std::int64_t>());
  const at::Tensor on_device = order.to(group.device());
  group.broadcast(on_device, 0);
  const at::Tensor agreed = on_device.to(at::kCPU);
  const auto* const first = agreed.const_data_ptr<std::int64_t>();
  return {.order = {first, first + count}, .layouts = agree_on_layouts(group, own.layouts)};
}

std::vector<GradientLayout> agree_on_layouts(const ProcessGroup& group,
                                             const std::vector<GradientLayout>& own) {
  if (group.world_size() == 1) return own;
  const auto count = static_cast<std::int64_t>(own.size());
  const at::Tensor flags = at::empty({2, count}, at::kInt);  // strided; sparse
  auto* const is_strided = flags.mutable_data_ptr<int>();
  auto* const is_sparse = is_strided + count;
  for (std::size_t i = 0; i < own.size(); ++i) {
    is_strided[i] = own[i] == GradientLayout::kStrided || own[i] == GradientLayout::kBoth ? 1 : 0;
    is_sparse[i] = own[i] == GradientLayout::kSparse || own[i] == GradientLayout::kBoth ? 1 : 0;
  }
  const at::Tensor on_device = flags.to(group.device());
  group.all_reduce(on_device, {.op = ReduceOp::kMax});
  const at::Tensor agreed = on_device.to(at::kCPU);
  const auto* const any_strided = agreed.const_data_ptr<int>();
  const auto* const any_sparse = any_strided + count;
  std::vector<GradientLayout> layouts;
  for (std::int64_t i = 0; i < count; ++i) {
    if (any_strided[i] != 0 && any_sparse[i] != 0) {
      layouts.push_back(GradientLayout::kBoth);
    } else if (any_sparse[i] != 0) {
      layouts.push_back(GradientLayout::kSparse);
    } else {
      layouts.push_back(any_strided[i] != 0 ? GradientLayout::kStrided : GradientLayout::kUnknown);
    }
  }
  return layouts;
}

}  // namespace lockstep::inline internal
