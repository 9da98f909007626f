#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// Hands out a mapping of a memory file in blocks, for what other processes read where it lies.
/// Freed memory is used again, best fit first; it goes back to the system with the file.
/// Threads: any. Errors: SystemError when memory is short.
class MemoryHeap {
 public:
  /// `begin`: what offset_of() says of the first byte.
  MemoryHeap(std::shared_ptr<const SharedMapping> memory, std::uint64_t begin);

  /// Aligned to pages when larger than one, else to a cache line; never null.
  std::byte* allocate(std::uint64_t bytes);
  void free(std::byte* block) noexcept;

  /// Where [data, data + bytes) lies, if it lies in this heap.
  std::optional<std::uint64_t> offset_of(const void* data, std::uint64_t bytes) const;

 private:
  void populate_to(std::uint64_t end) LOCKSTEP_REQUIRES(mutex_);

  const std::shared_ptr<const SharedMapping> memory_;
  const std::uint64_t begin_;
  Mutex mutex_;
  // Offsets from the first byte.
  /// Offset to bytes; never two adjacent.
  std::map<std::uint64_t, std::uint64_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t populated_end_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::inline internal
