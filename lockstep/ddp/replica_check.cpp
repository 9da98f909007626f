#include "lockstep/ddp/replica_check.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "lockstep/ddp/internal/fingerprint.h"
#include "lockstep/ddp/internal/replica_drift.h"
#include "lockstep/snapshot/internal/agreement.h"

namespace lockstep {
namespace {

at::Tensor one_number(std::int64_t number) {
  return at::full({1}, number, at::kLong);
}

std::vector<Fingerprints> gather_fingerprints(const ProcessGroup& group, const Fingerprints& own) {
  const std::string text = write_fingerprints(own);
  std::int64_t most_bytes = 0;
  std::vector<std::int64_t> bytes;
  for (const at::Tensor& one :
       gather_from_all(group, one_number(static_cast<std::int64_t>(text.size())))) {
    bytes.push_back(one.item<std::int64_t>());
    most_bytes = std::max(most_bytes, bytes.back());
  }
  const at::Tensor message = at::zeros({most_bytes}, at::kByte);
  text.copy(static_cast<char*>(message.mutable_data_ptr()), text.size());
  std::vector<Fingerprints> all;
  for (const at::Tensor& one : gather_from_all(group, message)) {
    const auto* const begin = static_cast<const char*>(one.const_data_ptr());
    all.push_back(read_fingerprints({begin, static_cast<std::size_t>(bytes[all.size()])}));
  }
  return all;
}

void compare(const ProcessGroup& group, const Fingerprints& own) {
  const auto all = static_cast<std::int64_t>(combined_hash(own));
  const std::vector<at::Tensor> hashes = gather_from_all(group, one_number(all));
  const bool agree = std::all_of(hashes.begin(), hashes.end(), [&](const at::Tensor& hash) {
    return hash.item<std::int64_t>() == all;
  });
  if (!agree) throw ReplicaDrift(describe_drift(gather_fingerprints(group, own)));
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
