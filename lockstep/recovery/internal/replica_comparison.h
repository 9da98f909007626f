#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Result of comparing the hashes of replicas.
struct ReplicaComparison {
  /// Ranks that differ from the majority; without a majority, all ranks that differ from rank 0.
  std::vector<int> odd;
  /// First rank of the majority.
  std::optional<int> source;
};

/// `hashes`: by rank, at least one.
ReplicaComparison compare_replicas(std::span<const std::int64_t> hashes);

/// Text for people if ranks differ: which, what happens to them, and where to look.
std::string describe(const ReplicaComparison& comparison, std::int64_t step);

}  // namespace lockstep::inline internal
