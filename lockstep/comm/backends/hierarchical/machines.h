#pragma once

#include <vector>

#include "lockstep/comm/internal/backend_choice.h"

namespace lockstep::hierarchical {

/// How the ranks of a group are spread over machines, as one of them sees it. Machines are numbered
/// in the order of their first ranks, the ranks of a machine in the order of the group.
struct Machines {
  int count = 1;
  int machine = 0;                    ///< this rank's
  std::vector<int> local_ranks = {};  ///< the group's ranks on this machine
  int local_index = 0;                ///< of this rank among them
  /// In how many parts the sum of a machine is exchanged with the others: one for each rank of the
  /// smallest machine.
  int shares = 1;
  /// The group's ranks with this local index, one a machine: who exchange the share of that number.
  /// Empty where this rank has no share.
  std::vector<int> partners = {};
  int most_ranks = 1;  ///< of any machine

  bool has_share() const { return local_index < shares; }
};

Machines machines_of(const MemoryDomains& domains, int rank);

}  // namespace lockstep::hierarchical
