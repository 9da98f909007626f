#include "lockstep/snapshot/pickle/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "crc32 reads words as little endian");

/// The polynomial of zip, bit-reversed.
constexpr std::uint32_t kPolynomial = 0xEDB88320;

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b] is the CRC of byte b followed by k zero bytes: with eight of them eight bytes are
/// taken a step.
constexpr CrcTables make_tables() {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t zeros = 1; zeros < 8; ++zeros) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr CrcTables kCrcTables = make_tables();

}  // namespace

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t previous) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~previous;
  for (; bytes >= 8; bytes -= 8, next += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, next, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kCrcTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++next) crc = (crc >> 8) ^ kCrcTables[0][(crc ^ *next) & 0xFF];
  return ~crc;
}

}  // namespace lockstep
