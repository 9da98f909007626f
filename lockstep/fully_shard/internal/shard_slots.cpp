#include "lockstep/fully_shard/internal/shard_slots.h"

#include <cerrno>
#include <utility>

#include <sys/stat.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {
namespace {

constexpr std::uint64_t kMarksBytes =
    std::uint64_t{ShardSlots::kSlots} * ShardSlots::kMostRanks * sizeof(std::uint64_t);
constexpr std::uint64_t kHeadBytes = std::uint64_t{64} * 1024;
static_assert(kMarksBytes <= kHeadBytes);

// A mark is one word, so that a killed rank leaves none half written.
constexpr unsigned kWorldBits = 16;
static_assert(ShardSlots::kMostRanks < (1 << kWorldBits));

std::int64_t version_of(std::uint64_t mark) {
  return static_cast<std::int64_t>(mark >> kWorldBits);
}

int world_size_of(std::uint64_t mark) {
  return static_cast<int>(mark & ((std::uint64_t{1} << kWorldBits) - 1));
}

std::uint64_t bytes_of_file(std::uint64_t slot_bytes) {
  return kHeadBytes + ShardSlots::kSlots * slot_bytes;
}

std::uint64_t number_of(const UniqueFd& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw SystemError("looking at a memory file", errno);
  return facts.st_ino;
}

}  // namespace

UniqueFd ShardSlots::make_file(const std::string& name, std::uint64_t slot_bytes) {
  return make_memory_file(name.c_str(), bytes_of_file(slot_bytes));
}

ShardSlots::ShardSlots(UniqueFd file, std::uint64_t slot_bytes)
    : file_(std::move(file)), id_(number_of(file_)), slot_bytes_(slot_bytes) {
  if (memory_file_bytes(file_.get()) != bytes_of_file(slot_bytes))
    throw SystemError("mapping the copies of shards", EINVAL);
  mapping_ = SharedMapping(file_.get(), bytes_of_file(slot_bytes));
  mapping_.populate(0, kHeadBytes);
}

std::atomic<std::uint64_t>& ShardSlots::mark_of(int slot, int rank) const {
  LOCKSTEP_ASSERT(rank < kMostRanks);
  auto* const marks = reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data());
  return marks[slot * kMostRanks + rank];
}

bool ShardSlots::is_complete(int slot, std::int64_t version) const {
  const std::uint64_t first = mark_of(slot, 0).load();
  if (version_of(first) != version || world_size_of(first) == 0) return false;
  for (int rank = 1; rank < world_size_of(first); ++rank) {
    if (mark_of(slot, rank).load() != first) return false;
  }
  return true;
}

std::optional<int> ShardSlots::find(std::int64_t version) const {
  for (int slot = 0; slot < kSlots; ++slot) {
    if (is_complete(slot, version)) return slot;
  }
  return std::nullopt;
}

int ShardSlots::free_slot(std::int64_t version, std::int64_t other) const {
  int slot = 0;
  while (slot == find(version) || slot == find(other)) ++slot;
  return slot;
}

void ShardSlots::mark(int slot, std::int64_t version, int rank, int world_size) {
  mark_of(slot, rank)
      .store(static_cast<std::uint64_t>(version) << kWorldBits |
             static_cast<std::uint64_t>(world_size));
}

void ShardSlots::forget_after(std::int64_t version) {
  for (int slot = 0; slot < kSlots; ++slot) {
    for (int rank = 0; rank < kMostRanks; ++rank) {
      std::atomic<std::uint64_t>& mark = mark_of(slot, rank);
      if (version_of(mark.load()) > version) mark.store(0);
    }
  }
}

std::uint64_t ShardSlots::offset_of(int slot) const {
  return kHeadBytes + static_cast<std::uint64_t>(slot) * slot_bytes_;
}

std::byte* ShardSlots::data(int slot) const {
  return mapping_.data() + offset_of(slot);
}

void ShardSlots::populate(int slot, std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes > 0) mapping_.populate(offset_of(slot) + offset, bytes);
}

}  // namespace lockstep::inline internal
