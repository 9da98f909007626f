#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/backends/hierarchical/failure_note.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// How the ranks of a group exchange sums: inside machines in shared memory, between machines by
/// messages. A rank of a group that shares no memory counts as a machine.
struct MachineGroups {
  std::vector<std::vector<int>> ranks;  ///< of each machine, ascending
  std::size_t machine = 0;              ///< this rank's
  std::size_t local_index = 0;          ///< of this rank among those of its machine
  /// A machine's elements are divided into as many shares as the smallest machine has ranks. The
  /// ranks with this local index exchange the share of that number.
  std::size_t shares = 1;
  /// The ranks of this machine, which share memory; empty if there is only this one.
  ProcessGroup local = {};
  /// The ranks with this local index, one per machine; empty if there is one machine, or if this
  /// rank has no share.
  ProcessGroup partners = {};

  /// Whether `local` and `partners` were created for this; else they are the group itself.
  bool are_new = false;
  /// Where ranks find why `local` and `partners` have ended. Null if the launcher tells them
  /// (InitOptions::while_waiting), and unless are_new.
  std::shared_ptr<hierarchical::FailureNote> note = {};
};

/// By rank: the first rank that is on its machine. Over any backend. Collective.
MemoryDomains machines_by_rank(const ProcessGroup& group);

/// Collective; over several machines it creates groups.
/// Errors: BackendUnavailable on all ranks if the ranks of a machine cannot share memory; else as
/// ProcessGroup::new_group.
MachineGroups machine_groups(const ProcessGroup& group);

}  // namespace lockstep::inline internal
