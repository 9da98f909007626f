#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

inline constexpr std::size_t kDigitsSide = 8;
inline constexpr std::size_t kDigitsPixels = kDigitsSide * kDigitsSide;
inline constexpr int kDigitsPixelMax = 16;
inline constexpr int kDigitsClasses = 10;

/// Handwritten digits as the file has them: kDigitsPixels grey values of 0 to kDigitsPixelMax a
/// sample, row by row, and the digit.
struct DigitsTable {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

/// One sample a line: 64 pixels and the label, separated by commas. Nothing else is accepted.
/// Errors: CorruptFile naming `file_name`, the line and what is wrong with it.
DigitsTable parse_digits_csv(std::string_view text, const std::string& file_name);

}  // namespace examples
