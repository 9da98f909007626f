#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep::inline internal {

/// The values that memory had at one moment, while processes continue to write to it.
/// Threads: one at a time.
/// Lifetime: until its destructor runs, the processes that write keep old values.
class FrozenMemory {
 public:
  FrozenMemory() = default;
  FrozenMemory(const FrozenMemory&) = delete;
  FrozenMemory& operator=(const FrozenMemory&) = delete;
  virtual ~FrozenMemory() = default;

  /// Copies the values of that moment. `first`: an address of the memory in this process.
  /// Errors: SystemError if a process had no memory to keep old values.
  virtual void read(const void* first, std::uint64_t bytes, std::byte* target) const = 0;
};

/// Memory whose present values can be read later, although nothing is copied now.
class FreezableMemory {
 public:
  FreezableMemory() = default;
  FreezableMemory(const FreezableMemory&) = delete;
  FreezableMemory& operator=(const FreezableMemory&) = delete;
  virtual ~FreezableMemory() = default;

  /// The present values, as this process sees them. Call it where no process writes. Null: the
  /// memory cannot be frozen now; copy it.
  virtual std::shared_ptr<const FrozenMemory> freeze() = 0;

  /// The memory with this address in this process; null: none.
  /// Threads: any.
  static std::shared_ptr<FreezableMemory> find(const void* address);

 protected:
  /// find() finds `memory` by addresses from `first` on, until it is destroyed.
  static void add(const std::byte* first, std::uint64_t bytes,
                  const std::weak_ptr<FreezableMemory>& memory);
  /// Call it in the destructor.
  static void remove(const std::byte* first);
};

}  // namespace lockstep::inline internal
