#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline internal {

/// XXH3-64: tells damage, not intent. `seed`: of what came before.
std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0);

}  // namespace lockstep::inline internal
