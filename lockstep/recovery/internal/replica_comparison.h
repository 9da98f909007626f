#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// What hashes of replicas that should be equal say.
struct ReplicaComparison {
  /// Ranks that differ from more than half of all; without such a majority, all ranks that differ
  /// from rank 0.
  std::vector<int> odd;
  /// The first rank of the majority.
  std::optional<int> source;
};

/// `hashes`: by rank, at least one.
ReplicaComparison compare_replicas(std::span<const std::int64_t> hashes);

/// For people, where some are odd: who differs, what becomes of them, and where to look.
std::string describe(const ReplicaComparison& comparison, std::int64_t step);

}  // namespace lockstep::inline internal
