#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// Memory in which the ranks of a machine leave copies of their shards, so that those of a killed
/// rank remain. There are three places, each for all shards of one version of the state: two that
/// ranks may have to return to, and one that they write. A version counts when each rank has marked
/// its shard in one place, also if some of these ranks have died since.
/// Threads: one per process; a rank writes its own shard and mark.
/// Lifetime: the file exists while a process has it. Errors: SystemError.
class ShardSlots {
 public:
  static constexpr int kSlots = 3;
  static constexpr int kMostRanks = 1024;

  /// Memory is used only where shards are written.
  static UniqueFd make_file(const std::string& name, std::uint64_t slot_bytes);
  ShardSlots(UniqueFd file, std::uint64_t slot_bytes);

  int file() const { return file_.get(); }
  /// Number of the file, equal in all processes.
  std::uint64_t id() const { return id_; }

  /// The slot in which all shards of the version are; empty: none.
  std::optional<int> find(std::int64_t version) const;
  /// The first slot that has neither of these complete versions.
  int free_slot(std::int64_t version, std::int64_t other) const;

  /// Before this rank writes to the slot.
  void unmark(int slot, int rank) { mark_of(slot, rank).store(0); }
  /// This rank's shard in the slot is of this version, of which world_size ranks have shards.
  void mark(int slot, std::int64_t version, int rank, int world_size);
  /// Removes all marks of later versions: ranks have returned to this one.
  void forget_after(std::int64_t version);

  std::byte* data(int slot) const;
  /// Allocates memory of a slot.
  /// Errors: SystemError if there is not enough.
  void populate(int slot, std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::uint64_t offset_of(int slot) const;
  std::atomic<std::uint64_t>& mark_of(int slot, int rank) const;
  bool is_complete(int slot, std::int64_t version) const;

  UniqueFd file_;
  std::uint64_t id_;
  std::uint64_t slot_bytes_;
  SharedMapping mapping_;
};

}  // namespace lockstep::inline internal
