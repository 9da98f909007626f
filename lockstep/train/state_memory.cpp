#include "lockstep/train/state_memory.h"

#include <atomic>
#include <cstring>

#include <ATen/ops/empty.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failpoint.h"
#include "lockstep/snapshot/hash_bytes.h"
#include "lockstep/snapshot/pickled.h"

namespace lockstep {

// A copy: the bytes of its pickle and of its storages, one after the other.
struct StateMemory::Slot {
  std::atomic<std::uint64_t> sequence;  // 0: being written, or never
  Standing standing;
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

constexpr std::uint64_t kMagic = 0x32657461'74736b6cU;
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

const StateMemory::Slot* StateMemory::newest_written() const {
  if (!file_.valid()) return nullptr;
  const Slot* const a = &header()->slots[0];
  const Slot* const b = &header()->slots[1];
  const Slot* const newest =
      a->sequence.load(std::memory_order_acquire) < b->sequence.load(std::memory_order_acquire) ? b
                                                                                                : a;
  return newest->sequence == 0 ? nullptr : newest;
}

const StateMemory::Slot* StateMemory::newest_whole() const {
  const Slot* const newest = newest_written();
  if (newest == nullptr) return nullptr;
  const auto is_whole = [&](const Slot& slot) {
    return slot.sequence != 0 && slot.bytes <= header()->capacity &&
           slot.pickle_bytes <= slot.bytes && hash_bytes(bytes_of(slot), slot.bytes) == slot.hash;
  };
  if (is_whole(*newest)) return newest;
  const Slot& before = header()->slots[newest == &header()->slots[0] ? 1 : 0];
  return is_whole(before) ? &before : nullptr;
}

std::byte* StateMemory::bytes_of(const Slot& slot) const {
  const auto index = static_cast<std::uint64_t>(&slot - header()->slots);
  return mapping_.data() + kHeaderBytes + index * header()->capacity;
}

Standing StateMemory::standing() const {
  const Slot* const slot = newest_whole();
  return slot == nullptr ? Standing{} : slot->standing;
}

c10::IValue StateMemory::read() const {
  const Slot* const slot = newest_whole();
  if (slot == nullptr) throw CorruptFile(concat(kWhat, " has changed since it was written"));
  const std::byte* at = bytes_of(*slot);
  std::uint64_t left = slot->bytes - slot->pickle_bytes;
  const std::string_view text(reinterpret_cast<const char*>(at), slot->pickle_bytes);
  at += slot->pickle_bytes;
  const auto next_storage = [&](std::uint64_t bytes) {
    if (bytes > left) throw CorruptFile(concat(kWhat, " is shorter than it says"));
    at::Tensor storage = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    std::memcpy(storage.mutable_data_ptr(), at, bytes);
    at += bytes;
    left -= bytes;
    return storage;
  };
  return unpickle_in_order(text, next_storage, kWhat);
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

bool StateMemory::write(const c10::IValue& value, const Standing& standing) {
  const Pickled pickled = pickle(value);
  std::uint64_t bytes = pickled.pickle.size();
  for (const at::Tensor& tensor : pickled.storages) bytes += tensor.storage().nbytes();
  const bool is_new = !file_.valid() || header()->capacity < bytes;
  if (is_new) make((bytes + kGranule) / kGranule * kGranule);
  const Slot* const last = newest_written();
  Slot& slot = header()->slots[last == &header()->slots[0] ? 1 : 0];
  const std::uint64_t sequence = last == nullptr ? 1 : last->sequence + 1;
  slot.sequence.store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  failpoint("memory.begin");
  std::byte* at = bytes_of(slot);
  const auto put = [&](const void* data, std::size_t size) {
    std::memcpy(at, data, size);
    at += size;
  };
  put(pickled.pickle.data(), pickled.pickle.size());
  for (const at::Tensor& tensor : pickled.storages) {
    failpoint("memory.part");
    put(tensor.storage().data(), tensor.storage().nbytes());
  }
  slot.standing = standing;
  slot.pickle_bytes = pickled.pickle.size();
  slot.bytes = bytes;
  slot.hash = hash_bytes(bytes_of(slot), bytes);
  failpoint("memory.copied");
  slot.sequence.store(sequence, std::memory_order_release);
  failpoint("memory.done");
  return is_new;
}

}  // namespace lockstep
