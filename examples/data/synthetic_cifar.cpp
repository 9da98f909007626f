#include "examples/data/synthetic_cifar.h"

namespace examples {
namespace {

/// Patterns have this many squares a side, of one brightness each.
constexpr std::size_t kPatternSide = 4;
constexpr std::size_t kSquarePixels = kCifarSide / kPatternSide;
/// As many fine classes to a coarse one as in CIFAR-100.
constexpr std::uint64_t kFineOfCoarse = kCifar100Classes / kCifar100CoarseClasses;

// SplitMix64 (Steele, Lea and Flood, 2014): good bits from any sequence of different numbers.
std::uint64_t mix_bits(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

void make_synthetic_cifar_record(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                                 std::span<std::uint8_t, kCifarRecordBytes> record) {
  const std::uint64_t label = index % kCifar100Classes;
  record[0] = static_cast<std::uint8_t>(label / kFineOfCoarse);
  record[1] = static_cast<std::uint8_t>(label);
  const std::uint64_t pattern_key = mix_bits(mix_bits(seed) + label);
  const std::uint64_t noise_key = mix_bits(mix_bits(mix_bits(seed) ^ ~stream) + index);
  for (std::size_t at = 0; at < kCifarImageBytes; at += 8) {
    // Eight pixels of one row lie in one square.
    const std::size_t channel = at / kCifarPlaneBytes;
    const std::size_t square_row = at % kCifarPlaneBytes / kCifarSide / kSquarePixels;
    const std::size_t square_column = at % kCifarSide / kSquarePixels;
    const std::size_t square = (channel * kPatternSide + square_row) * kPatternSide + square_column;
    const std::uint64_t brightness = mix_bits(pattern_key + square) & 0xff;
    std::uint64_t noise = mix_bits(noise_key + at);
    for (std::size_t pixel = at; pixel < at + 8; ++pixel, noise >>= 8) {
      record[kCifarLabelBytes + pixel] =
          static_cast<std::uint8_t>((brightness + (noise & 0xff)) / 2);
    }
  }
}

}  // namespace examples
