#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Which rank writes each tensor that all ranks have, so that all write about as many bytes: the
/// largest first, each to the rank that has the fewest so far. `kept_bytes`: by rank, what it
/// writes in any case. The same on every rank for the same numbers.
std::vector<int> plan_shares(const std::vector<std::uint64_t>& tensor_bytes,
                             std::vector<std::uint64_t> kept_bytes);

}  // namespace lockstep::inline internal
