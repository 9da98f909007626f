#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/shm/segment.h"

namespace lockstep::shm {

/// Memory of this rank's arena, for tensors that peers reach without a copy. Freed memory is used
/// again, best fit first; it goes back to the system with the segment.
/// Threads: any. Errors: SystemError when memory is short.
class Heap {
 public:
  Heap(std::shared_ptr<Segment> segment, int rank);

  /// Aligned to pages when larger than one, else to a cache line; never null.
  std::byte* allocate(std::uint64_t bytes);
  void free(std::byte* block) noexcept;

  /// Where in the segment [data, data + bytes) lies, if it lies in this heap.
  std::optional<std::uint64_t> offset_of(const void* data, std::uint64_t bytes) const;

 private:
  void populate_to(std::uint64_t end) LOCKSTEP_REQUIRES(mutex_);

  std::byte* data_of(std::uint64_t offset) const {
    return memory_.data() + (offset - range_.begin);
  }

  const std::shared_ptr<Segment> segment_;
  const Range range_;
  const SharedMapping& memory_;
  Mutex mutex_;
  /// Offset to bytes; never two adjacent.
  std::map<std::uint64_t, std::uint64_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t populated_end_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::shm
