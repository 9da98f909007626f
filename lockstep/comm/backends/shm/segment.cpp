#include "lockstep/comm/backends/shm/segment.h"

namespace lockstep::shm {

Segment::Segment(UniqueFd file, const Layout& layout)
    : file_(std::move(file)),
      layout_(layout),
      common_(file_.get(), 0, layout.common_bytes()),
      heaps_(static_cast<std::size_t>(layout.ranks())) {}

const SharedMapping& Segment::map_heap(int rank) {
  const Range heap = layout_.heap(rank);
  SharedMapping& mapping = heaps_[static_cast<std::size_t>(rank)];
  if (mapping.data() == nullptr) mapping = SharedMapping(file_.get(), heap.begin, heap.bytes);
  return mapping;
}

std::byte* Segment::heap_at(std::uint64_t offset, std::uint64_t bytes) {
  const int rank = layout_.heap_owner(offset);
  const SharedMapping& whole = heaps_[static_cast<std::size_t>(rank)];
  if (whole.data() != nullptr) return whole.data() + (offset - layout_.heap(rank).begin);
  const Range range = layout_.window(offset, bytes);
  const MutexLock lock(mutex_);
  SharedMapping& window = windows_[{range.begin, range.bytes}];
  if (window.data() == nullptr) window = SharedMapping(file_.get(), range.begin, range.bytes);
  return window.data() + (offset - range.begin);
}

}  // namespace lockstep::shm
