#include "lockstep/recovery/internal/state_memory.h"

#include <atomic>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/pickle/pickled.h"

namespace lockstep::inline internal {

// A copy: the bytes of its pickle and of its storages, one after the other.
struct StateMemory::Slot {
  std::atomic<std::uint64_t> sequence;  // 0: being written, or never
  std::int64_t generation;
  std::int64_t steps;
  std::uint64_t is_end;
  std::uint64_t pickle_bytes;
  std::uint64_t bytes;
  std::uint64_t hash;  // of all that and of the bytes
};

struct StateMemory::Header {
  std::uint64_t magic;
  std::uint64_t capacity;  // of a slot, bytes
  Slot slots[2];
};

namespace {

constexpr std::uint64_t kMagic = 0x34657461'74736b6cU;
constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kGranule = std::uint64_t{1} << 20;
constexpr const char* kWhat = "the state in memory";

std::uint64_t size_of(const Pickled& pickled) {
  std::uint64_t bytes = pickled.pickle.size();
  for (const at::Tensor& tensor : pickled.storages) bytes += tensor.storage().nbytes();
  return bytes;
}

}  // namespace

std::uint64_t StateMemory::bytes_of_copy(const c10::IValue& value) {
  return size_of(pickle(value));
}

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

std::uint64_t StateMemory::hash_of(const Slot& slot, std::uint64_t sequence) const {
  const std::uint64_t facts[] = {sequence,
                                 static_cast<std::uint64_t>(slot.generation),
                                 static_cast<std::uint64_t>(slot.steps),
                                 slot.is_end,
                                 slot.pickle_bytes,
                                 slot.bytes};
  return hash_bytes(bytes_of(slot), slot.bytes, hash_bytes(facts, sizeof facts));
}

bool StateMemory::is_whole(const Slot& slot) const {
  const std::uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
  return sequence != 0 && slot.bytes <= header()->capacity && slot.pickle_bytes <= slot.bytes &&
         hash_of(slot, sequence) == slot.hash;
}

const StateMemory::Slot& StateMemory::newest() const {
  const auto& [first, second] = header()->slots;
  return first.sequence.load(std::memory_order_acquire) <
                 second.sequence.load(std::memory_order_acquire)
             ? second
             : first;
}

const StateMemory::Slot* StateMemory::newest_whole() const {
  if (!file_.valid()) return nullptr;
  const Slot& newer = newest();
  if (is_whole(newer)) return &newer;
  const Slot& older = header()->slots[&newer == header()->slots ? 1 : 0];
  return is_whole(older) ? &older : nullptr;
}

std::byte* StateMemory::bytes_of(const Slot& slot) const {
  const auto index = static_cast<std::uint64_t>(&slot - header()->slots);
  return mapping_.data() + kHeaderBytes + index * header()->capacity;
}

Standing StateMemory::standing() const {
  const Slot* const slot = newest_whole();
  if (slot == nullptr) return {};
  return {.generation = slot->generation, .steps = slot->steps, .is_end = slot->is_end != 0};
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
  mapping.populate(0, kHeaderBytes);
  file_ = std::move(file);
  mapping_ = std::move(mapping);
  header()->capacity = capacity;
  header()->magic = kMagic;
}

bool StateMemory::write(const c10::IValue& value, const Standing& standing) {
  const Pickled pickled = pickle(value);
  const std::uint64_t bytes = size_of(pickled);
  const bool is_new = !file_.valid() || header()->capacity < bytes;
  if (is_new) make((bytes + kGranule) / kGranule * kGranule);
  // Not the newest that is whole: the other may be damaged, or half written by a process before.
  // Hashing what this object wrote itself would cost as much as the write.
  const Slot* const last =
      own_sequence_ != 0 && newest().sequence == own_sequence_ ? &newest() : newest_whole();
  Slot& slot = header()->slots[last == &header()->slots[0] ? 1 : 0];
  const std::uint64_t sequence = last == nullptr ? 1 : last->sequence + 1;
  mapping_.populate(static_cast<std::uint64_t>(bytes_of(slot) - mapping_.data()), bytes);
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
  slot.generation = standing.generation;
  slot.steps = standing.steps;
  slot.is_end = standing.is_end ? 1 : 0;
  slot.pickle_bytes = pickled.pickle.size();
  slot.bytes = bytes;
  slot.hash = hash_of(slot, sequence);
  failpoint("memory.copied");
  slot.sequence.store(sequence, std::memory_order_release);
  own_sequence_ = sequence;
  failpoint("memory.done");
  return is_new;
}

}  // namespace lockstep::inline internal
