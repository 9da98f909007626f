#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline internal {

/// The checksum of Castagnoli, CRC-32C, as in iSCSI and in TensorFlow's record files.
std::uint32_t crc32c(const void* data, std::size_t bytes);

/// As record files have it: rotated and added to, so that the checksum of bytes that hold a
/// checksum is no accident.
std::uint32_t masked_crc32c(const void* data, std::size_t bytes);

}  // namespace lockstep::inline internal
