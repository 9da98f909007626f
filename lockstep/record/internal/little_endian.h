#pragma once

#include <concepts>
#include <cstddef>
#include <string>

namespace lockstep::inline internal {

/// The number's bytes, the lowest first.
template <std::unsigned_integral Number>
void append_little_endian(std::string& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
  }
}

}  // namespace lockstep::inline internal
