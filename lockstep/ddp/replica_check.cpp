#include "lockstep/ddp/replica_check.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <ATen/ops/zeros.h>

#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/internal/fingerprint.h"

namespace lockstep {
namespace {

std::vector<Fingerprints> gather_fingerprints(const ProcessGroup& group, const Fingerprints& own) {
  const std::string text = write_fingerprints(own);
  const auto bytes = gather_rows(group, {static_cast<std::int64_t>(text.size())});
  const at::Tensor message = at::zeros(std::ranges::max(bytes), at::kByte);
  text.copy(static_cast<char*>(message.mutable_data_ptr()), text.size());
  std::vector<Fingerprints> all;
  for (const at::Tensor& one : gather_from_all(group, message)) {
    const auto* const begin = static_cast<const char*>(one.const_data_ptr());
    all.push_back(read_fingerprints({begin, static_cast<std::size_t>(bytes[all.size()][0])}));
  }
  return all;
}

void compare(const ProcessGroup& group, const Fingerprints& own) {
  const std::vector hash{static_cast<std::int64_t>(combined_hash(own))};
  const auto hashes = gather_rows(group, hash);
  const bool differs = std::ranges::count(hashes, hash) != group.world_size();
  if (differs) throw ReplicaDrift(describe_drift(gather_fingerprints(group, own)));
}

}  // namespace

void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors) {
  if (group.world_size() > 1) compare(group, fingerprints_of(tensors));
}

void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors,
                          const torch::optim::Optimizer& optimizer) {
  if (group.world_size() == 1) return;
  Fingerprints own = fingerprints_of(tensors);
  add_fingerprints(own, optimizer, tensors);
  compare(group, own);
}

}  // namespace lockstep
