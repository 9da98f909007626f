#include "lockstep/one_copy/internal/hash.h"

#include <xxhash.h>

namespace lockstep::inline internal {

std::uint64_t hash_of(const void* data, std::size_t size_bytes, std::uint64_t seed) {
  return XXH64(data, size_bytes, seed);
}

}  // namespace lockstep::inline internal
