#include "lockstep/comm/internal/exchange_values.h"

#include <algorithm>
#include <exception>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/comm/internal/store_wait.h"

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
                     const std::string& text, const std::string& cure) {
  const std::string of_first = broadcast_text(group, text, 0);
  const std::vector<int> others = failed_ranks(group, of_first != text);
  if (others.empty()) return;
  const std::string of_other = broadcast_text(group, text, others.front());
  throw UsageError(concat(operation, ": ranks differ: rank 0 has ",
                          words_missing_in(of_other, of_first), ", rank ", others.front(), " has ",
                          words_missing_in(of_first, of_other), "; ", cure));
}

int group_rank(const ProcessGroup& group) {
  return group ? group.rank() : 0;
}

int group_world_size(const ProcessGroup& group) {
  return group ? group.world_size() : 1;
}

std::vector<at::Tensor> gather_from_all(const ProcessGroup& group, const at::Tensor& tensor) {
  if (!group) return {tensor};
  const at::Tensor input = tensor.contiguous().to(group.device());
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group.world_size(); ++rank) outputs.push_back(at::empty_like(input));
  group.all_gather(outputs, input);
  for (at::Tensor& output : outputs) output = output.cpu();
  return outputs;
}

std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row) {
  const at::Tensor own = at::empty({static_cast<std::int64_t>(row.size())}, at::kLong);
  std::copy(row.begin(), row.end(), own.mutable_data_ptr<std::int64_t>());
  std::vector<std::vector<std::int64_t>> rows;
  for (const at::Tensor& one : gather_from_all(group, own)) {
    const auto* values = one.const_data_ptr<std::int64_t>();
    rows.emplace_back(values, values + one.numel());
  }
  return rows;
}

std::vector<int> failed_ranks(const ProcessGroup& group, bool has_failed) {
  std::vector<int> ranks;
  const auto rows = gather_rows(group, {has_failed ? 1 : 0});
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank][0] != 0) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void run_on_all(const ProcessGroup& group, const std::string& operation,
                const std::function<void()>& action) {
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<int> failed = failed_ranks(group, error != nullptr);
  if (error) std::rethrow_exception(error);
  if (failed.empty()) return;
  throw PeerFailed({.operation = operation, .ranks = failed},
                   concat("failed on rank ", join_numbers(failed), "; see the message there"));
}

}  // namespace lockstep::inline internal
