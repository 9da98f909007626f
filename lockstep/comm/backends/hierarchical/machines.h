#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/internal/backend_choice.h"

namespace lockstep::hierarchical {

/// How a group's ranks are distributed over machines, as seen by one rank. Machines are numbered in
/// the order of their first ranks, local ranks in the order of the group.
struct Machines {
  int count = 1;
  int machine = 0;                           ///< this rank's
  std::vector<std::vector<int>> ranks = {};  ///< the group's ranks, by machine
  int local_index = 0;                       ///< of this rank among those of its machine
  /// Number of shares of a machine's sum that are exchanged in parallel: the number of ranks of the
  /// smallest machine.
  int shares = 1;
  /// The ranks with this local index, one per machine, which exchange the share of that number.
  /// Empty if this rank has no share.
  std::vector<int> partners = {};
  int most_ranks = 1;  ///< of any machine

  const std::vector<int>& local_ranks() const { return ranks[static_cast<std::size_t>(machine)]; }
  bool has_share() const { return local_index < shares; }
};

/// The distribution of a group, as seen by `rank`.
Machines machines_of(const MemoryDomains& domains, int rank);

}  // namespace lockstep::hierarchical
