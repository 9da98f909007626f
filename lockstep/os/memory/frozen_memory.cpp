#include "lockstep/os/memory/frozen_memory.h"

#include <iterator>
#include <map>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {
namespace {

struct Range {
  std::uint64_t bytes;
  std::weak_ptr<FreezableMemory> memory;
};

// By the first address.
struct Ranges {
  Mutex mutex;
  std::map<const std::byte*, Range> by_first LOCKSTEP_GUARDED_BY(mutex);
};

Ranges& ranges() {
  static auto* const of_process = new Ranges();  // never destroyed
  return *of_process;
}

}  // namespace

std::shared_ptr<FreezableMemory> FreezableMemory::find(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  std::shared_ptr<FreezableMemory> memory;  // Its destructor takes the lock.
  const MutexLock lock(ranges().mutex);
  const auto next = ranges().by_first.upper_bound(byte);
  if (next == ranges().by_first.begin()) return nullptr;
  const auto& [first, range] = *std::prev(next);
  if (byte < first + range.bytes) memory = range.memory.lock();
  return memory;
}

void FreezableMemory::add(const std::byte* first, std::uint64_t bytes,
                          const std::weak_ptr<FreezableMemory>& memory) {
  const MutexLock lock(ranges().mutex);
  ranges().by_first[first] = {.bytes = bytes, .memory = memory};
}

void FreezableMemory::remove(const std::byte* first) {
  const MutexLock lock(ranges().mutex);
  const auto found = ranges().by_first.find(first);
  if (found != ranges().by_first.end() && found->second.memory.expired()) {
    ranges().by_first.erase(found);
  }
}

}  // namespace lockstep::inline internal
