#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

/// Places at which a test kills or stops a process, or makes a system call fail
/// (docs/failpoints.md). Compiled in with the CMake option LOCKSTEP_FAILPOINTS; without it the
/// calls below only check their names, at compile time.
namespace lockstep::inline internal {

/// What can fail at a failpoint, besides the end or stop of the process.
enum class FailpointKind {
  kPlace,  ///< nothing
  kCall,   ///< a system call fails with EIO
  kWrite,  ///< as kCall, or a write is short
};

struct FailpointInfo {
  std::string_view name;
  FailpointKind kind = FailpointKind::kPlace;
};

/// All failpoints, in the order in which a process passes them.
inline constexpr std::array kFailpoints = {
    // A file that is whole or absent (AtomicFile): of a snapshot, `n` counts its writes.
    FailpointInfo{"file.create", FailpointKind::kCall},
    FailpointInfo{"file.created"},
    FailpointInfo{"file.write", FailpointKind::kWrite},
    FailpointInfo{"file.sync", FailpointKind::kCall},
    FailpointInfo{"file.synced"},
    FailpointInfo{"file.rename", FailpointKind::kCall},
    FailpointInfo{"file.renamed"},
    FailpointInfo{"file.sync_directory", FailpointKind::kCall},
    FailpointInfo{"file.done"},
    // A snapshot of a run.
    FailpointInfo{"save.begin"},
    FailpointInfo{"save.gathered"},
    FailpointInfo{"save.written"},
    FailpointInfo{"save.delete", FailpointKind::kCall},
    FailpointInfo{"save.deleted"},
    // A copy in memory.
    FailpointInfo{"memory.begin"},
    FailpointInfo{"memory.part"},
    FailpointInfo{"memory.copied"},
    FailpointInfo{"memory.done"},
    FailpointInfo{"memory.left"},
    // A step, its collectives, what is kept and written after it.
    FailpointInfo{"step.begin"},
    FailpointInfo{"collective.begin"},
    FailpointInfo{"collective.checked"},
    FailpointInfo{"collective.started"},
    FailpointInfo{"collective.done"},
    FailpointInfo{"step.made"},
    FailpointInfo{"step.counted"},
    FailpointInfo{"step.kept"},
    FailpointInfo{"metrics.written"},
    FailpointInfo{"training.end"},
    FailpointInfo{"training.done"},
    // A step of one copy per machine: of the ranks' shares, in chunks.
    FailpointInfo{"update.begin"},
    FailpointInfo{"update.handed"},
    FailpointInfo{"update.prepared"},
    FailpointInfo{"update.copied"},
    FailpointInfo{"update.marked"},
    FailpointInfo{"update.kept"},
    FailpointInfo{"update.begun"},
    FailpointInfo{"update.written"},
    FailpointInfo{"update.chunk"},
    FailpointInfo{"update.complete"},
    FailpointInfo{"update.taken"},
    FailpointInfo{"update.restored"},
    // A rank leaves a copy of its shard, fully sharded.
    FailpointInfo{"shards.begin"},
    FailpointInfo{"shards.copied"},
    FailpointInfo{"shards.marked"},
    // Recovery: a generation is left, a place in the next taken.
    FailpointInfo{"recover.begin"},
    FailpointInfo{"recover.left"},
    FailpointInfo{"recover.said"},
    FailpointInfo{"recover.placed"},
    FailpointInfo{"recover.grouped"},
    FailpointInfo{"recover.compared"},
    FailpointInfo{"recover.send"},
    FailpointInfo{"recover.described"},
    FailpointInfo{"recover.receive"},
    FailpointInfo{"recover.received"},
    FailpointInfo{"recover.taken"},
    FailpointInfo{"recover.agreed"},
    // How ranks meet.
    FailpointInfo{"meet.begin"},
    FailpointInfo{"meet.store"},
    FailpointInfo{"meet.joined"},
    FailpointInfo{"connect.begin"},
    FailpointInfo{"connect.reached"},
    FailpointInfo{"meet.connected"},
    FailpointInfo{"group.begin"},
    // How workers of lockstep::rpc meet.
    FailpointInfo{"rpc.listening"},
    // The launcher's part.
    FailpointInfo{"launch.join"},
    FailpointInfo{"launch.joined"},
    FailpointInfo{"launch.begin"},
    FailpointInfo{"launch.start"},
    FailpointInfo{"launch.started"},
    FailpointInfo{"launch.over"},
    FailpointInfo{"launch.place"},
    FailpointInfo{"launch.placed"},
};

/// One of kFailpoints, by its name; any other name does not compile.
class Failpoint {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  consteval Failpoint(const char* name) : index_(find(name)) {}
  std::size_t index() const { return index_; }

 private:
  static consteval std::size_t find(std::string_view name) {
    for (std::size_t index = 0; index < kFailpoints.size(); ++index) {
      if (kFailpoints[index].name == name) return index;
    }
    throw "no failpoint of this name in kFailpoints";
  }
  std::size_t index_;
};

#if defined(LOCKSTEP_FAILPOINTS)

/// Passes a failpoint: kills or stops the process if LOCKSTEP_FAILPOINT says so.
/// Threads: any.
/// Errors: UsageError on the first call if LOCKSTEP_FAILPOINT is invalid.
void failpoint(Failpoint point);

/// Passes a failpoint before a system call. True: the call must fail, with this errno.
[[nodiscard]] bool failpoint_fails(Failpoint point);

/// Passes a failpoint before a write of `bytes` bytes. Returns how many to write, at least one
/// unless `bytes` is 0; empty, with errno: the write must fail.
[[nodiscard]] std::optional<std::size_t> failpoint_at_write(Failpoint point, std::size_t bytes);

/// Replaces LOCKSTEP_FAILPOINT by `text` and resets all counts.
/// Threads: no other thread passes a failpoint.
/// Errors: UsageError with what is invalid and all names.
void arm_failpoints(std::string_view text);

/// Reads LOCKSTEP_FAILPOINT, once; else the first failpoint does.
/// Errors: as arm_failpoints.
void read_failpoints();

/// Number of times that this process has passed each of kFailpoints, in their order; empty in a
/// build without failpoints.
/// Threads: any.
std::vector<std::int64_t> failpoint_passes();

#else

inline void failpoint(Failpoint) {}
[[nodiscard]] inline bool failpoint_fails(Failpoint) {
  return false;
}
[[nodiscard]] inline std::optional<std::size_t> failpoint_at_write(Failpoint, std::size_t bytes) {
  return bytes;
}
inline void read_failpoints() {}
inline std::vector<std::int64_t> failpoint_passes() {
  return {};
}

#endif

}  // namespace lockstep::inline internal
