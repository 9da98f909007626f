#include "lockstep/os/memory/memory_heap.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// Memory is taken from the system in steps, since each call costs microseconds.
constexpr std::uint64_t kPopulateStep = 64 * 1024;
constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

MemoryHeap::MemoryHeap(std::shared_ptr<const SharedMapping> memory, std::uint64_t begin)
    : memory_(std::move(memory)), begin_(begin), free_{{0, memory_->bytes()}} {}

std::byte* MemoryHeap::allocate(std::uint64_t bytes) {
  const std::uint64_t unit = bytes >= kPageBytes ? kPageBytes : kLineBytes;
  const std::uint64_t needed = round_up(std::max<std::uint64_t>(bytes, 1), unit);
  const MutexLock lock(mutex_);
  auto best = free_.end();
  std::uint64_t best_bytes = 0;
  // Sizes near 2^64 would wrap around.
  for (auto block = free_.begin(); bytes <= memory_->bytes() && block != free_.end(); ++block) {
    const std::uint64_t begin = round_up(block->first, unit);
    if (begin + needed > block->first + block->second) continue;
    if (best == free_.end() || block->second < best_bytes) {
      best = block;
      best_bytes = block->second;
    }
  }
  if (best == free_.end()) {
    throw SystemError(concat("allocating ", bytes, " bytes of shared memory"), ENOMEM,
                      concat("the heap of this rank has ", memory_->bytes(), " bytes"));
  }
  const std::uint64_t block_begin = best->first;
  const std::uint64_t block_bytes = best->second;
  const std::uint64_t begin = round_up(block_begin, unit);
  const std::uint64_t end = begin + needed;
  populate_to(end);
  free_.erase(best);
  if (begin > block_begin) free_.emplace(block_begin, begin - block_begin);
  if (end < block_begin + block_bytes) free_.emplace(end, block_begin + block_bytes - end);
  used_.emplace(begin, needed);
  return memory_->data() + begin;
}

void MemoryHeap::populate_to(std::uint64_t end) {
  if (end <= populated_end_) return;
  const std::uint64_t goal = std::min(round_up(end, kPopulateStep), memory_->bytes());
  memory_->populate(populated_end_, goal - populated_end_);
  populated_end_ = goal;
}

void MemoryHeap::free(std::byte* data) noexcept {
  const MutexLock lock(mutex_);
  const auto block = used_.find(static_cast<std::uint64_t>(data - memory_->data()));
  LOCKSTEP_ASSERT(block != used_.end());
  std::uint64_t begin = block->first;
  std::uint64_t bytes = block->second;
  used_.erase(block);
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      bytes += previous->second;
      free_.erase(previous);
    }
  }
  free_.emplace(begin, bytes);
}

std::optional<std::uint64_t> MemoryHeap::offset_of(const void* data, std::uint64_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory_->data());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address < begin || address + bytes > begin + memory_->bytes()) return std::nullopt;
  return address - begin + begin_;
}

}  // namespace lockstep::inline internal
