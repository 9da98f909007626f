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

/// A named value in 64 bits: equal where dtype, shape and every bit of the elements are.
struct Fingerprint {
  std::string name;
  std::uint64_t hash = 0;
  bool operator==(const Fingerprint&) const = default;
};
using Fingerprints = std::vector<Fingerprint>;

Fingerprints fingerprints_of(const std::vector<NamedTensor>& tensors);

/// Adds an optimizer's settings and, unless each rank keeps a share of it only (ShardedState), its
/// state. Parameters have their names from `tensors`, others their places in the groups.
/// Errors: UsageError for optimizers that snapshots do not know either.
void add_fingerprints(Fingerprints& fingerprints, const torch::optim::Optimizer& optimizer,
                      const std::vector<NamedTensor>& tensors);

/// Of all, names included.
std::uint64_t combined_hash(const Fingerprints& fingerprints);

/// As text to send, and back.
std::string write_fingerprints(const Fingerprints& fingerprints);
Fingerprints read_fingerprints(std::string_view text);

/// What to say of replicas of which some differ, from each rank's fingerprints: the ranks unlike
/// the largest number of ranks that are alike (of several such numbers the one with the lowest
/// rank), and of each the first name whose value differs or that only one of both has, and how many
/// such names there are. Pure.
std::string describe_drift(const std::vector<Fingerprints>& ranks);

}  // namespace lockstep::inline internal
