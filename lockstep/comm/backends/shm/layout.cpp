#include "lockstep/comm/backends/shm/layout.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::shm {
namespace {

constexpr std::uint64_t kHugePage = 2 * 1024 * 1024;
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

std::uint64_t heap_offset(int ranks) {
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

Layout::Layout(int ranks, std::uint64_t arena_bytes)
    : ranks_(ranks), arena_bytes_(arena_bytes / kHugePage * kHugePage) {
  LOCKSTEP_ASSERT(ranks >= 1 && ranks <= kMostRanks);
  LOCKSTEP_ASSERT(arena_bytes_ >= least_arena_bytes(ranks));
}

std::uint64_t Layout::least_arena_bytes(int ranks) {
  return heap_offset(ranks) + kHugePage;
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
  const std::uint64_t offset = heap_offset(ranks_);
  return {.begin = arena(rank) + offset, .bytes = arena_bytes_ - offset};
}

}  // namespace lockstep::shm
