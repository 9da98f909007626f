#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/ddp/internal/replica_state.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// A 64-bit hash of a named value: equal if dtype, shape and all bits are.
struct Fingerprint {
  std::string name;
  std::uint64_t hash = 0;
  bool operator==(const Fingerprint&) const = default;
};
using Fingerprints = std::vector<Fingerprint>;

Fingerprints fingerprints_of(const std::vector<NamedTensor>& tensors);

/// Adds an optimizer's options and, unless each rank keeps only a shard of it (ShardedState), its
/// state. Parameters have their names from `tensors`, others their position in the groups.
/// Errors: UsageError for optimizers that snapshots do not know either.
void add_fingerprints(Fingerprints& fingerprints, const torch::optim::Optimizer& optimizer,
                      const std::vector<NamedTensor>& tensors);

/// Hash of all fingerprints, names included.
std::uint64_t combined_hash(const Fingerprints& fingerprints);

/// Encodes fingerprints as text; read_fingerprints decodes it.
std::string write_fingerprints(const Fingerprints& fingerprints);
Fingerprints read_fingerprints(std::string_view text);

/// Text for replicas that differ, from each rank's fingerprints: the ranks that differ from the
/// largest group of equal ranks (of equally large groups the one with the lowest rank), and for
/// each the first name that differs or that only one of both has, and the number of such names.
/// Pure.
std::string describe_drift(const std::vector<Fingerprints>& ranks);

}  // namespace lockstep::inline internal
