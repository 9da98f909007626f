#include "lockstep/recovery/internal/broadcast_value.h"

#include <ATen/ops/empty.h>

#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/exchange/flat_messages.h"
#include "lockstep/snapshot/pickle/pickled.h"

namespace lockstep::inline internal {
namespace {

at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, at::kByte)
      .set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

void broadcast_bytes(const ProcessGroup& group, const std::vector<at::Tensor>& storages,
                     int source) {
  std::vector<at::Tensor> sent;
  for (const at::Tensor& storage : storages) sent.push_back(storage.to(group.device()));
  broadcast_tensors(group, sent, source);
  for (std::size_t i = 0; i < storages.size(); ++i) {
    if (!sent[i].is_same(storages[i])) storages[i].copy_(sent[i]);
  }
}

}  // namespace

c10::IValue broadcast_value(const ProcessGroup& group, const c10::IValue& own, int source) {
  if (group.world_size() == 1) return own;
  Pickled pickled = own.isNone() ? Pickled() : pickle(own);
  const bool is_source = group.rank() == source;
  if (is_source) failpoint("recover.send");
  const std::string text =
      broadcast_text(group, is_source ? pickled.pickle : std::string(), source);
  if (is_source) failpoint("recover.described");
  std::vector<at::Tensor> storages;
  c10::IValue value = own;
  if (is_source || pickled.pickle == text) {
    for (const at::Tensor& tensor : pickled.storages) storages.push_back(bytes_of(tensor));
  } else {
    const auto next_storage = [&](std::uint64_t bytes) {
      return storages.emplace_back(at::empty({static_cast<std::int64_t>(bytes)}, at::kByte));
    };
    value = unpickle_in_order(text, next_storage, "another rank's state");
  }
  if (!is_source) failpoint("recover.receive");
  broadcast_bytes(group, storages, source);
  return value;
}

}  // namespace lockstep::inline internal
