#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/recovery/internal/replica_comparison.h"
#include "lockstep/recovery/internal/standing.h"
#include "lockstep/recovery/internal/state_memory.h"

namespace lockstep::inline internal {

/// The state of a training, as recovery moves it from rank to rank.
class MovableState {
 public:
  virtual ~MovableState() = default;
  /// Everything that the state consists of, as files can hold it; shares memory.
  virtual c10::IValue value() = 0;
  /// Replaces the state by a value() of another process. Errors: UsageError where this process has
  /// other objects.
  virtual void take(const c10::IValue& value) = 0;
  virtual std::uint64_t parameters_hash() const = 0;
};

/// Collective: compares the hashes of the ranks' parameters. Errors: as Work::wait.
ReplicaComparison compare_parameters(const ProcessGroup& group, std::uint64_t hash);

/// Collective: compares the ranks' parameters after `steps` steps. Ranks that differ from more than
/// half take the state of another; `is_whole` is false while this rank's state is replaced.
/// Errors: Error on all ranks where no state has a majority; as Work::wait.
void repair_replicas(const ProcessGroup& group, MovableState& state, std::int64_t steps,
                     bool& is_whole);

/// Leaves a copy of the state with this machine's launcher, on the first rank of the machine. Warns
/// where memory is short. One of the training's end, where no copy was made before, is made only if
/// there is plenty.
void keep_copy(const ProcessGroup& group, MovableState& state, const Standing& standing,
               StateMemory& memory, LauncherLink& link);

}  // namespace lockstep::inline internal
