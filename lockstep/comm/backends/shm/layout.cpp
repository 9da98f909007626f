#include "lockstep/comm/backends/shm/layout.h"

#include <algorithm>

#include "lockstep/base/internal/check.h"

namespace lockstep::shm {
namespace {

constexpr std::uint64_t kHugePage = 2 * 1024 * 1024;
// So that dozens of groups fit the 2^47 bytes of address space of a process.
constexpr std::uint64_t kMostHeapBytes = std::uint64_t{1} << 41;
// Two lines, so that the prefetch of a neighbour does not tie two writers together.
constexpr std::uint64_t kCountersBytes = 2 * kLineBytes;

std::uint64_t entries_offset(int ranks) {
  return kControlBytes + round_up(static_cast<std::uint64_t>(ranks) * kCountersBytes, kPageBytes);
}

std::uint64_t slots_offset(int ranks) {
  return entries_offset(ranks) + kEntries * kLineBytes;
}

std::uint64_t messages_offset(int ranks) {
  return slots_offset(ranks) + kSlots * kSlotBytes;
}

// A chunk and, before it, a line that says what is in it.
constexpr std::uint64_t kChunkStride = kLineBytes + kMessageChunkBytes;
constexpr std::uint64_t kMessagesStride = round_up(kMessageChunks * kChunkStride, kPageBytes);

std::uint64_t arena_bytes(int ranks) {
  return round_up(messages_offset(ranks) + static_cast<std::uint64_t>(ranks) * kMessagesStride,
                  kHugePage);
}

}  // namespace

Range share(std::uint64_t bytes, int ranks, int rank) {
  const std::uint64_t lines = (bytes + kLineBytes - 1) / kLineBytes;
  const auto boundary = [&](int index) {
    const auto part = static_cast<std::uint64_t>(index);
    const auto parts = static_cast<std::uint64_t>(ranks);
    // lines × part ÷ parts without overflow.
    const std::uint64_t line = lines / parts * part + lines % parts * part / parts;
    return std::min(line * kLineBytes, bytes);
  };
  return {.begin = boundary(rank), .bytes = boundary(rank + 1) - boundary(rank)};
}

Layout::Layout(int ranks, std::uint64_t heap_bytes) : ranks_(ranks), heap_bytes_(heap_bytes) {
  LOCKSTEP_ASSERT(ranks >= 1 && ranks <= kMostRanks);
  LOCKSTEP_ASSERT(heap_bytes >= kHugePage && heap_bytes % kHugePage == 0);
}

Layout Layout::for_memory(int ranks, std::uint64_t memory_bytes) {
  return {ranks, round_up(std::clamp(memory_bytes, kHugePage, kMostHeapBytes), kHugePage)};
}

std::uint64_t Layout::arena(int rank) const {
  return arena_bytes(ranks_) * static_cast<std::uint64_t>(rank);
}

std::uint64_t Layout::message_counters(int rank, int peer) const {
  return arena(rank) + kControlBytes + static_cast<std::uint64_t>(peer) * kCountersBytes;
}

std::uint64_t Layout::entry(int rank, std::uint32_t round) const {
  return arena(rank) + entries_offset(ranks_) + round % kEntries * kLineBytes;
}

std::uint64_t Layout::slot(int rank, std::uint32_t round) const {
  return arena(rank) + slots_offset(ranks_) + round % kSlots * kSlotBytes;
}

std::uint64_t Layout::populated_bytes() const {
  return messages_offset(ranks_);
}

std::uint64_t Layout::message_chunk(int rank, int peer, std::uint64_t number) const {
  return arena(rank) + messages_offset(ranks_) +
         static_cast<std::uint64_t>(peer) * kMessagesStride +
         number % kMessageChunks * kChunkStride;
}

Range Layout::heap(int rank) const {
  return {.begin = common_bytes() + heap_bytes_ * static_cast<std::uint64_t>(rank),
          .bytes = heap_bytes_};
}

int Layout::heap_owner(std::uint64_t offset) const {
  LOCKSTEP_ASSERT(offset >= common_bytes() && offset < segment_bytes());
  return static_cast<int>((offset - common_bytes()) / heap_bytes_);
}

Range Layout::window(std::uint64_t offset, std::uint64_t bytes) const {
  const Range whole = heap(heap_owner(offset));
  std::uint64_t stride = kLeastWindowBytes / 2;
  while (stride < bytes) stride *= 2;
  const std::uint64_t begin = (offset - whole.begin) / stride * stride;
  return {.begin = whole.begin + begin, .bytes = std::min(2 * stride, whole.bytes - begin)};
}

}  // namespace lockstep::shm
