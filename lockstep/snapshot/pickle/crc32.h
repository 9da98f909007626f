#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// The CRC-32 that zip archives keep of each record. `previous` is the CRC of the bytes before.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t previous = 0);

}  // namespace lockstep
