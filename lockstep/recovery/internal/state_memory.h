#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/recovery/internal/standing.h"

namespace lockstep::inline internal {

/// Copies of a training's state in a memory file that outlives the processes: two, of which one is
/// whole while the other is written, whenever the process that writes is killed. A hash of all that
/// a copy has, its standing too, shows damage. Readers always hash; a writer hashes copies of other
/// processes, so as not to write over the only whole one, and trusts its own.
/// Threads: one process and thread writes. Lifetime: the file is freed with its last descriptor.
class StateMemory {
 public:
  StateMemory() = default;
  /// The file of a process before this one; what is no such file counts as empty.
  explicit StateMemory(UniqueFd file);

  /// Of the newest copy that is whole and has not changed since it was written.
  Standing standing() const;
  /// That copy. Errors: CorruptFile when there is none.
  c10::IValue read() const;

  /// Writes a copy of a writable_value(). True when the file is another than before: a process that
  /// outlives this one has to hold it. Errors: SystemError when memory is short: the copies before
  /// stay.
  bool write(const c10::IValue& value, const Standing& standing);

  /// Memory that a copy of a writable_value() takes.
  static std::uint64_t bytes_of_copy(const c10::IValue& value);

  const UniqueFd& file() const { return file_; }

 private:
  struct Slot;
  struct Header;
  Header* header() const;
  std::uint64_t hash_of(const Slot& slot, std::uint64_t sequence) const;
  bool is_whole(const Slot& slot) const;
  const Slot& newest() const;
  const Slot* newest_whole() const;
  std::byte* bytes_of(const Slot& slot) const;
  void make(std::uint64_t capacity);

  UniqueFd file_;
  SharedMapping mapping_;
  std::uint64_t own_sequence_ = 0;  // of the last copy that this object wrote; 0: none
};

}  // namespace lockstep::inline internal
