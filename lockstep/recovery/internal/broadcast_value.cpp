#include "lockstep/recovery/internal/broadcast_value.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/exchange/flat_messages.h"
#include "lockstep/one_copy/internal/kept_memory.h"
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

// Where the storage lies in memory that all ranks have, in a word; kSent: nowhere.
constexpr std::int64_t kSent = -1;
constexpr int kOffsetBits = 48;

std::int64_t word_of(const at::Tensor& tensor, const KeptMemory* kept) {
  const auto place = kept == nullptr ? std::nullopt : kept->find(tensor.storage().data());
  if (!place || tensor.storage().nbytes() == 0) return kSent;
  return static_cast<std::int64_t>(std::uint64_t{place->memory} << kOffsetBits | place->offset);
}

at::Tensor storage_at(std::int64_t word, std::uint64_t bytes, const KeptMemory& kept) {
  const auto place = static_cast<std::uint64_t>(word);
  return kept.storage_at(
      {.memory = place >> kOffsetBits, .offset = place & ((std::uint64_t{1} << kOffsetBits) - 1)},
      bytes);
}

/// A pickle, and a word for each of its storages.
struct Description {
  std::string pickle;
  std::vector<std::int64_t> places = {};

  std::string text() const {
    std::string text(sizeof(std::int64_t) * (places.size() + 1), '\0');
    const auto count = static_cast<std::int64_t>(places.size());
    std::memcpy(text.data(), &count, sizeof count);
    std::memcpy(text.data() + sizeof count, places.data(), places.size() * sizeof count);
    return text + pickle;
  }
  static Description of(const std::string& text) {
    std::int64_t count = 0;
    if (text.size() < sizeof count) throw CorruptFile("another rank's state is cut off");
    std::memcpy(&count, text.data(), sizeof count);
    const std::uint64_t bytes = (static_cast<std::uint64_t>(count) + 1) * sizeof count;
    if (count < 0 || bytes > text.size()) throw CorruptFile("another rank's state is cut off");
    Description found{.pickle = text.substr(bytes),
                      .places = std::vector<std::int64_t>(static_cast<std::size_t>(count))};
    std::memcpy(found.places.data(), text.data() + sizeof count, bytes - sizeof count);
    return found;
  }
};

void note_sent(const ProcessGroup& group, const std::vector<at::Tensor>& sent,
               const std::vector<std::int64_t>& places) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : sent) bytes += tensor.nbytes();
  log(LogLevel::kInfo,
      concat("recovery: rank ", group.rank(), " sends ", bytes, " bytes of the state; ",
             places.size() - sent.size(), " tensors lie in memory that all ranks have"));
}

}  // namespace

c10::IValue broadcast_value(const ProcessGroup& group, const c10::IValue& own, int source,
                            const KeptMemory* kept) {
  if (group.world_size() == 1) return own;
  Pickled pickled = own.isNone() ? Pickled() : pickle(own);
  const bool is_source = group.rank() == source;
  Description described{.pickle = std::move(pickled.pickle)};
  for (const at::Tensor& tensor : pickled.storages) {
    described.places.push_back(word_of(tensor, kept));
  }
  if (is_source) failpoint("recover.send");
  const std::string text =
      broadcast_text(group, is_source ? described.text() : std::string(), source);
  if (is_source) failpoint("recover.described");
  std::vector<at::Tensor> storages;
  c10::IValue value = own;
  if (is_source || described.text() == text) {
    for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
      if (described.places[i] == kSent) storages.push_back(bytes_of(pickled.storages[i]));
    }
  } else {
    const Description sent = Description::of(text);
    auto place = sent.places.begin();
    const auto next_storage = [&](std::uint64_t bytes) {
      if (place == sent.places.end()) throw CorruptFile("another rank's state is cut off");
      const std::int64_t word = *place++;
      if (word != kSent && kept != nullptr) return storage_at(word, bytes, *kept);
      return storages.emplace_back(at::empty({static_cast<std::int64_t>(bytes)}, at::kByte));
    };
    value = unpickle_in_order(sent.pickle, next_storage, "another rank's state");
  }
  if (is_source) note_sent(group, storages, described.places);
  if (!is_source) failpoint("recover.receive");
  broadcast_bytes(group, storages, source);
  return value;
}

}  // namespace lockstep::inline internal
