#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/recovery/internal/replica_comparison.h"
#include "lockstep/recovery/internal/standing.h"
#include "lockstep/recovery/internal/state_memory.h"

namespace lockstep::inline internal {

/// The state of a training run, as recovery transfers it between ranks.
class MovableState {
 public:
  virtual ~MovableState() = default;
  /// The whole state in a form that files can hold; shares memory.
  virtual c10::IValue value() = 0;
  /// Replaces the state by a value() of another process.
  /// Errors: UsageError if this process has other objects.
  virtual void take(const c10::IValue& value) = 0;
  virtual std::uint64_t parameters_hash() const = 0;
};

/// Compares the hashes of the ranks' parameters. Collective.
/// Errors: as Work::wait.
ReplicaComparison compare_parameters(const ProcessGroup& group, std::uint64_t hash);

/// Compares the ranks' parameters after `steps` steps and gives ranks that differ from the majority
/// another rank's state. `is_whole` is false while this rank's state is replaced. Collective.
/// Errors: Error on all ranks if no state has a majority; as Work::wait.
void repair_replicas(const ProcessGroup& group, MovableState& state, std::int64_t steps,
                     bool& is_whole);

/// Leaves a copy of the state with this machine's launcher, on the first rank of the machine. Warns
/// if memory is short. At the end of training, if there was no copy before, it makes one only if
/// there is plenty of memory.
void keep_copy(const ProcessGroup& group, MovableState& state, const Standing& standing,
               StateMemory& memory, LauncherLink& link);

}  // namespace lockstep::inline internal
