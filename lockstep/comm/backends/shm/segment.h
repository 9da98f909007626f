#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::shm {

/// The shared memory of a group as this process maps it. Arenas are mapped from the start, heaps on
/// use: a rank's own heap whole, those of peers in windows.
/// Threads: any; map_heap() before others use that heap.
/// Lifetime: exists while any tensor in it does.
/// Errors: SystemError.
class Segment {
 public:
  Segment(UniqueFd file, const Layout& layout);

  const Layout& layout() const { return layout_; }
  int file() const { return file_.get(); }
  /// Address of an offset before the heaps.
  std::byte* at(std::uint64_t offset) const { return common_.data() + offset; }
  /// See SharedMapping::populate.
  void populate(std::uint64_t offset, std::uint64_t bytes) const {
    common_.populate(offset, bytes);
  }

  /// The whole heap of a rank of this process.
  /// Lifetime: the segment's.
  const SharedMapping& map_heap(int rank);
  /// Address in this process of [offset, offset + bytes) in any rank's heap.
  std::byte* heap_at(std::uint64_t offset, std::uint64_t bytes);

 private:
  const UniqueFd file_;
  const Layout layout_;
  const SharedMapping common_;
  std::vector<SharedMapping> heaps_;  ///< by rank; empty for those of other processes
  Mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, SharedMapping> windows_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::shm
