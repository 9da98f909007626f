#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// The numbers 0 to size - 1 in the order torch.randperm gives them with a generator of this seed;
/// the global random state is not touched.
std::vector<std::size_t> random_permutation(std::size_t size, std::uint64_t seed);

}  // namespace lockstep::inline internal
