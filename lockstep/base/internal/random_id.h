#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline internal {

/// From the system's random number generator.
std::uint64_t random_number();

/// 32 random hexadecimal digits: unique and unpredictable.
std::string random_id();

}  // namespace lockstep::inline internal
