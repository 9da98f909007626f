#pragma once

#include <cstdint>

namespace lockstep::inline internal {

/// Whether the lines of a target are left to the caches or written past them. Writing past them
/// pays for lines that are not in one's own cache and that another core will read.
enum class Store : std::uint8_t { kOrdinary, kNonTemporal };

}  // namespace lockstep::inline internal
