#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// How many steps a state has. A later one is greater: of two sides of a network partition that
/// have both made a step of the same number, the one that the job continued with counts.
struct Standing {
  /// The generation that made its last step; -1: there is no state.
  std::int64_t generation = -1;
  std::int64_t steps = -1;
  /// It is the state of the training's end.
  bool is_end = false;

  bool exists() const { return steps >= 0; }
  auto operator<=>(const Standing&) const = default;
};

/// Where a training may go on from, as one rank has it.
struct Sources {
  Standing state{};
  Standing memory{};  ///< its machine's copy
  /// Steps of the newest snapshot on disk; -1: there is none.
  std::int64_t snapshot_steps = -1;
  /// Steps that all ranks were once of one state after, or that the launcher knows of processes
  /// that have ended; -1: this rank knows of none.
  std::int64_t known_steps = -1;
};

/// What all ranks are to have.
struct SourceChoice {
  enum class Kind {
    kOwn,       ///< every rank has it
    kRank,      ///< the state of rank `rank`
    kMemory,    ///< the copy in the memory of its machine
    kSnapshot,  ///< the newest one on disk; then the copy in memory, if that proves to be newer
    kBegin,     ///< nothing has been done: what rank 0 begins with
    kLost,      ///< nothing is left of what was done, `standing.steps` steps at least
  };
  Kind kind = Kind::kBegin;
  int rank = 0;
  Standing standing{};
};
/// The furthest state; where no rank has one, the furthest of what was kept.
SourceChoice choose_source(const std::vector<Sources>& ranks);

}  // namespace lockstep::inline internal
