#include "lockstep/snapshot/internal/hash_bytes.h"

#include <xxhash.h>

namespace lockstep::inline internal {

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace lockstep::inline internal
