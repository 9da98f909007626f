#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline internal {

/// From the system's source of randomness.
std::uint64_t random_number();

/// 32 hexadecimal digits: nothing else has the same, and nobody guesses it.
std::string random_id();

}  // namespace lockstep::inline internal
