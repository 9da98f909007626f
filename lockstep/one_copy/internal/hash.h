#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline internal {

/// XXH64 of these bytes, at the speed of memory: to tell whether values have changed.
std::uint64_t hash_of(const void* data, std::size_t size_bytes, std::uint64_t seed = 0);

}  // namespace lockstep::inline internal
