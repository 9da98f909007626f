#include "lockstep/comm/internal/gather_rows.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {

std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row) {
  const auto length = static_cast<std::int64_t>(row.size());
  const at::Tensor ours = at::empty({length}, at::kLong);
  std::copy(row.begin(), row.end(), ours.mutable_data_ptr<std::int64_t>());
  const auto on_device = at::TensorOptions(at::kLong).device(group.device());
  const at::Tensor all = at::empty({group.world_size() * length}, on_device);
  group.all_gather_into_tensor(all, ours.to(group.device()));
  const at::Tensor on_cpu = all.to(at::kCPU);
  const auto* values = on_cpu.const_data_ptr<std::int64_t>();
  std::vector<std::vector<std::int64_t>> rows;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    rows.emplace_back(values + rank * length, values + (rank + 1) * length);
  }
  return rows;
}

}  // namespace lockstep::inline internal
