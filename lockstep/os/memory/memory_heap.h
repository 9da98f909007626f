#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// Allocates blocks of a mapped memory file, for data that other processes read in place. Reuses
/// freed memory, best fit first; it returns to the system with the file.
/// Threads: any.
/// Errors: SystemError if memory is short.
class MemoryHeap {
 public:
  /// `begin`: offset_of() the first byte.
  MemoryHeap(std::shared_ptr<const SharedMapping> memory, std::uint64_t begin);

  /// Aligned to a page if larger than one, else to a cache line. Never null.
  std::byte* allocate(std::uint64_t bytes);
  void free(std::byte* block) noexcept;

  /// Offset of [data, data + bytes); empty if it is not in this heap.
  std::optional<std::uint64_t> offset_of(const void* data, std::uint64_t bytes) const;

 private:
  void populate_to(std::uint64_t end) LOCKSTEP_REQUIRES(mutex_);

  const std::shared_ptr<const SharedMapping> memory_;
  const std::uint64_t begin_;
  Mutex mutex_;
  // Offsets are from the first byte.
  /// Offset to bytes; adjacent blocks are merged.
  std::map<std::uint64_t, std::uint64_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t populated_end_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::inline internal
