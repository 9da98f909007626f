#include "lockstep/record/internal/crc32c.h"

#include <array>

namespace lockstep::inline internal {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // The bits of 0x1EDC6F41 in reverse.
constexpr std::uint32_t kMaskDelta = 0xA282EAD8U;
constexpr int kMaskShift = 15;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const unsigned char*>(data);
  std::uint32_t value = ~std::uint32_t{0};
  for (std::size_t i = 0; i < bytes; ++i) {
    value = (value >> 8) ^ kTable[(value ^ begin[i]) & 0xFFU];
  }
  return ~value;
}

std::uint32_t masked_crc32c(const void* data, std::size_t bytes) {
  const std::uint32_t value = crc32c(data, bytes);
  return ((value >> kMaskShift) | (value << (32 - kMaskShift))) + kMaskDelta;
}

}  // namespace lockstep::inline internal
