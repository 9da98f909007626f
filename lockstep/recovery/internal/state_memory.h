#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/recovery/internal/standing.h"

namespace lockstep::inline internal {

/// Copies of a training state in a memory file that outlives the processes. There are two copies:
/// one is complete while the other is written, even if the writer is killed. A hash of a copy and
/// its standing detects damage. Readers always check it. A writer checks copies of other processes,
/// so as not to overwrite the only complete one, and trusts its own.
/// Threads: one process and thread writes.
/// Lifetime: the file is freed with its last descriptor.
class StateMemory {
 public:
  StateMemory() = default;
  /// The file of an earlier process; any other file counts as empty.
  explicit StateMemory(UniqueFd file);

  /// Standing of the newest complete and undamaged copy.
  Standing standing() const;
  /// That copy.
  /// Errors: CorruptFile if there is none.
  c10::IValue read() const;

  /// Writes a copy of a writable_value(). Returns true if the file is a new one: a process that
  /// outlives this one must then hold it.
  /// Errors: SystemError if memory is short; earlier copies remain.
  bool write(const c10::IValue& value, const Standing& standing);

  /// Memory that a copy of a writable_value() needs.
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
