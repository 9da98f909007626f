#include "lockstep/recovery/internal/replica_comparison.h"

#include <algorithm>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

ReplicaComparison compare_replicas(std::span<const std::int64_t> hashes) {
  ReplicaComparison result;
  for (std::size_t rank = 0; rank < hashes.size() && !result.source; ++rank) {
    const auto same = static_cast<std::size_t>(std::ranges::count(hashes, hashes[rank]));
    if (2 * same > hashes.size()) result.source = static_cast<int>(rank);
  }
  const std::int64_t reference = hashes[static_cast<std::size_t>(result.source.value_or(0))];
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != reference) result.odd.push_back(static_cast<int>(rank));
  }
  return result;
}

std::string describe(const ReplicaComparison& comparison, std::int64_t step) {
  std::string odd;
  for (const int rank : comparison.odd) odd += concat(odd.empty() ? "rank " : ", rank ", rank);
  return concat("recovery: after step ", step, " the parameters of ", odd, " differ from rank ",
                comparison.source.value_or(0), "'s",
                comparison.source ? ", which replace them" : ", and no state has a majority",
                "; check for state that steps read but that is not named or registered, and for "
                "faulty memory of that machine");
}

}  // namespace lockstep::inline internal
