#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Progress of a state, ordered: a later one is greater. If both sides of a network partition have
/// made a step of the same number, the one of the later generation, with which the job continued,
/// is greater.
struct Standing {
  /// Generation that made its last step; -1: there is no state.
  std::int64_t generation = -1;
  std::int64_t steps = -1;
  /// It is the state at the end of training.
  bool is_end = false;

  bool exists() const { return steps >= 0; }
  auto operator<=>(const Standing&) const = default;
};

/// States from which training can continue, as one rank has them.
struct Sources {
  Standing state{};
  Standing memory{};  ///< its machine's copy
  /// Steps of the newest snapshot on disk; -1: none.
  std::int64_t snapshot_steps = -1;
  /// Steps that the job is known to have completed, from an agreement of all ranks or from ended
  /// processes; -1: unknown.
  std::int64_t known_steps = -1;
};

/// The state that all ranks will have.
struct SourceChoice {
  enum class Kind {
    kOwn,       ///< every rank has it already
    kRank,      ///< the state of rank `rank`
    kMemory,    ///< the copy in memory of the machine of rank `rank`
    kSnapshot,  ///< the newest snapshot, or the copy in memory if that proves to be newer
    kBegin,     ///< no step was made: rank 0's initial state
    kLost,      ///< the state after at least `standing.steps` steps is lost
  };
  Kind kind = Kind::kBegin;
  int rank = 0;
  Standing standing{};
};
/// The most advanced state of any rank; if there is none, the most advanced of copies in memory and
/// snapshots.
SourceChoice choose_source(const std::vector<Sources>& ranks);

}  // namespace lockstep::inline internal
