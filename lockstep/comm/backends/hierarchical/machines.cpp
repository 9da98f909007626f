#include "lockstep/comm/backends/hierarchical/machines.h"

#include <algorithm>
#include <map>

namespace lockstep::hierarchical {

Machines machines_of(const MemoryDomains& domains, int rank) {
  // A domain has the number of its first rank: the map is in the order of machines.
  std::map<int, std::vector<int>> ranks_of_domain;
  for (int other = 0; other < static_cast<int>(domains.size()); ++other) {
    ranks_of_domain[domains[static_cast<std::size_t>(other)]].push_back(other);
  }
  const int domain = domains[static_cast<std::size_t>(rank)];
  Machines machines{.count = static_cast<int>(ranks_of_domain.size()),
                    .shares = static_cast<int>(domains.size())};
  for (const auto& [first, ranks] : ranks_of_domain) {
    if (first < domain) ++machines.machine;
    machines.ranks.push_back(ranks);
    machines.shares = std::min(machines.shares, static_cast<int>(ranks.size()));
    machines.most_ranks = std::max(machines.most_ranks, static_cast<int>(ranks.size()));
  }
  const std::vector<int>& local = machines.local_ranks();
  machines.local_index = static_cast<int>(std::ranges::find(local, rank) - local.begin());
  if (!machines.has_share()) return machines;
  for (const auto& [first, ranks] : ranks_of_domain) {
    machines.partners.push_back(ranks[static_cast<std::size_t>(machines.local_index)]);
  }
  return machines;
}

}  // namespace lockstep::hierarchical
