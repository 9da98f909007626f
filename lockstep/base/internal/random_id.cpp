#include "lockstep/base/internal/random_id.h"

#include <cinttypes>
#include <cstdio>
#include <random>

namespace lockstep::inline internal {

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

std::string random_id() {
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64 "%016" PRIx64, random_number(),
                random_number());
  return digits;
}

}  // namespace lockstep::inline internal
