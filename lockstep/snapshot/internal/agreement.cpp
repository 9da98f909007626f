#include "lockstep/snapshot/internal/agreement.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::inline internal {

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

std::vector<int> failed_ranks(const ProcessGroup& group, bool has_failed) {
  std::vector<int> ranks;
  const auto all = gather_from_all(group, at::full({1}, has_failed ? 1 : 0, at::kLong));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].item().toLong() != 0) ranks.push_back(static_cast<int>(rank));
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
