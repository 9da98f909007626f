#include "lockstep/train/state_memory.h"

#include <atomic>
#include <cstring>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/parse_number.h"
#include "lockstep/os/machine.h"
#include "lockstep/snapshot/hash_bytes.h"
#include "lockstep/snapshot/pickled.h"
#include "lockstep/snapshot/unpickler.h"

namespace lockstep {

// A copy: the bytes of its pickle and of its storages, one after the other.
struct StateMemory::Slot {
  std::atomic<std::uint64_t> sequence;  // 0: being written, or never
  std::int64_t steps;
  std::uint64_t pickle_bytes;
  std::uint64_t bytes;
  std::uint64_t hash;
};

struct StateMemory::Header {
  std::uint64_t magic;
  std::uint64_t capacity;  // of a slot, bytes
  Slot slots[2];
};

namespace {

constexpr std::uint64_t kMagic = 0x31657461'74736b6cU;
constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kGranule = std::uint64_t{1} << 20;
constexpr const char* kWhat = "the state in memory";

}  // namespace

StateMemory::StateMemory(UniqueFd file) {
  const auto bytes = memory_file_bytes(file.get());
  if (!bytes || *bytes < kHeaderBytes) return;
  SharedMapping mapping(file.get(), *bytes);
  const auto* const header = reinterpret_cast<const Header*>(mapping.data());
  if (header->magic != kMagic || header->capacity > *bytes ||
      kHeaderBytes + 2 * header->capacity != *bytes) {
    return;
  }
  file_ = std::move(file);
  mapping_ = std::move(mapping);
}

StateMemory::Header* StateMemory::header() const {
  return reinterpret_cast<Header*>(mapping_.data());
}

const StateMemory::Slot* StateMemory::newest() const {
  if (!file_.valid()) return nullptr;
  const Slot* best = nullptr;
  std::uint64_t best_sequence = 0;
  for (const Slot& slot : header()->slots) {
    const std::uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
    if (sequence <= best_sequence || slot.bytes > header()->capacity ||
        slot.pickle_bytes > slot.bytes) {
      continue;
    }
    best = &slot;
    best_sequence = sequence;
  }
  return best;
}

std::byte* StateMemory::bytes_of(const Slot& slot) const {
  const auto index = static_cast<std::uint64_t>(&slot - header()->slots);
  return mapping_.data() + kHeaderBytes + index * header()->capacity;
}

std::optional<std::int64_t> StateMemory::steps() const {
  const Slot* const slot = newest();
  if (slot == nullptr) return std::nullopt;
  return slot->steps;
}

c10::IValue StateMemory::read() const {
  const Slot* const slot = newest();
  if (slot == nullptr || hash_bytes(bytes_of(*slot), slot->bytes) != slot->hash) {
    throw CorruptFile(std::string(kWhat) + " has changed since it was written");
  }
  const std::byte* at = bytes_of(*slot);
  std::uint64_t left = slot->bytes - slot->pickle_bytes;
  const std::string_view text(reinterpret_cast<const char*>(at), slot->pickle_bytes);
  at += slot->pickle_bytes;
  std::size_t next = 0;
  const auto read = [&](const std::string& key, std::uint64_t bytes) {
    const auto index = parse_number<std::size_t>(key);
    if (!index || *index != next++ || bytes > left) {
      throw CorruptFile(std::string(kWhat) + ": its storages are not in order");
    }
    at::Tensor storage = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    std::memcpy(storage.mutable_data_ptr(), at, bytes);
    at += bytes;
    left -= bytes;
    return storage;
  };
  return unpickle(text, read, kWhat);
}

void StateMemory::make(std::uint64_t capacity) {
  const std::uint64_t bytes = kHeaderBytes + 2 * capacity;
  UniqueFd file = make_memory_file("lockstep state", bytes);
  SharedMapping mapping(file.get(), bytes);
  mapping.populate(0, bytes);
  file_ = std::move(file);
  mapping_ = std::move(mapping);
  header()->capacity = capacity;
  header()->magic = kMagic;
}

bool StateMemory::write(const c10::IValue& value, std::int64_t steps) {
  const Pickled pickled = pickle(value);
  std::uint64_t bytes = pickled.pickle.size();
  for (const at::Tensor& tensor : pickled.storages) bytes += tensor.storage().nbytes();
  const bool is_new = !file_.valid() || header()->capacity < bytes;
  if (is_new) make((bytes + kGranule) / kGranule * kGranule);
  const Slot* const last = newest();
  Slot& slot = header()->slots[last == &header()->slots[0] ? 1 : 0];
  const std::uint64_t sequence = last == nullptr ? 1 : last->sequence + 1;
  slot.sequence.store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::byte* at = bytes_of(slot);
  const auto put = [&](const void* data, std::size_t size) {
    std::memcpy(at, data, size);
    at += size;
  };
  put(pickled.pickle.data(), pickled.pickle.size());
  for (const at::Tensor& tensor : pickled.storages) {
    put(tensor.storage().data(), tensor.storage().nbytes());
  }
  slot.steps = steps;
  slot.pickle_bytes = pickled.pickle.size();
  slot.bytes = bytes;
  slot.hash = hash_bytes(bytes_of(slot), bytes);
  slot.sequence.store(sequence, std::memory_order_release);
  return is_new;
}

}  // namespace lockstep
