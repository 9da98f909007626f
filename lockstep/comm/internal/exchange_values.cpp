#include "lockstep/comm/internal/exchange_values.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name) {
  const auto options = at::TensorOptions(at::kByte).device(group.device());
  const at::Tensor length =
      at::empty({1}, options.dtype(at::kLong)).fill_(static_cast<std::int64_t>(text.size()));
  group.broadcast(length, source, {.name = name});
  const auto bytes = length.item<std::int64_t>();
  if (bytes == 0) return {};
  at::Tensor message = at::empty({bytes}, at::kByte);
  if (group.rank() == source)
    text.copy(static_cast<char*>(message.mutable_data_ptr()), text.size());
  message = message.to(group.device());
  group.broadcast(message, source, {.name = name});
  message = message.to(at::kCPU);
  return {static_cast<const char*>(message.const_data_ptr()), static_cast<std::size_t>(bytes)};
}

void check_same_text(const ProcessGroup& group, const std::string& operation,
                     const std::string& text) {
  const std::string of_first = broadcast_text(group, text, 0);
  const at::Tensor differing =
      at::empty({1}, at::TensorOptions(at::kInt).device(group.device())).fill_(of_first != text);
  group.all_reduce(differing);
  if (differing.item<int>() == 0) return;
  throw UsageError(concat(operation, ": the ranks have other options; rank 0 has ", of_first,
                          ", rank ", group.rank(), " ", text));
}

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
