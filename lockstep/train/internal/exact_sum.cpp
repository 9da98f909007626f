#include "lockstep/train/internal/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {
namespace {

constexpr int kBitsOfDigit = 32;
constexpr std::int64_t kDigit = std::int64_t{1} << kBitsOfDigit;
constexpr int kBitsOfMantissa = 53;
constexpr int kLowestExponent = -1074;

enum Special : std::size_t { kInfinite = kDigitsOfExactSum, kMinusInfinite, kNotANumber };

// Each digit but the last into 0 … 2^32 - 1. The last has the sign of the sum.
void carry(std::span<std::int64_t> digits) {
  std::int64_t carried = 0;
  for (std::size_t i = 0; i + 1 < digits.size(); ++i) {
    const std::int64_t with = digits[i] + carried;
    carried = with >> kBitsOfDigit;
    digits[i] = with - carried * kDigit;
  }
  digits.back() += carried;
}

}  // namespace

void add_exactly(std::span<std::int64_t> sum, double term) {
  LOCKSTEP_ASSERT(sum.size() == kWordsOfExactSum);
  if (!std::isfinite(term)) {
    ++sum[std::isnan(term) ? kNotANumber : term > 0 ? kInfinite : kMinusInfinite];
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(std::abs(term), &exponent);
  // term is `mantissa` times 2^(place - 1074).
  int place = exponent - kBitsOfMantissa - kLowestExponent;
  auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, kBitsOfMantissa));
  if (place < 0) {
    mantissa >>= -place;  // Of a subnormal number: these bits are 0.
    place = 0;
  }
  const auto at = static_cast<std::size_t>(place / kBitsOfDigit);
  const int shift = place % kBitsOfDigit;
  constexpr std::uint64_t kMask = kDigit - 1;
  const std::uint64_t low = (mantissa & kMask) << shift;
  const std::uint64_t high = (mantissa >> kBitsOfDigit) << shift;
  const std::int64_t sign = term < 0 ? -1 : 1;
  sum[at] += sign * static_cast<std::int64_t>(low & kMask);
  sum[at + 1] += sign * static_cast<std::int64_t>((low >> kBitsOfDigit) + (high & kMask));
  sum[at + 2] += sign * static_cast<std::int64_t>(high >> kBitsOfDigit);
  carry(sum.first(kDigitsOfExactSum));
}

double rounded_sum(std::span<const std::int64_t> sum) {
  LOCKSTEP_ASSERT(sum.size() == kWordsOfExactSum);
  if (sum[kNotANumber] > 0 || (sum[kInfinite] > 0 && sum[kMinusInfinite] > 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (sum[kInfinite] > 0) return kInfinity;
  if (sum[kMinusInfinite] > 0) return -kInfinity;
  std::vector<std::int64_t> digits(sum.begin(), sum.begin() + kDigitsOfExactSum);
  carry(digits);
  const bool is_negative = digits.back() < 0;
  if (is_negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry(digits);
  }
  std::size_t top = digits.size() - 1;
  while (top > 0 && digits[top] == 0) --top;
  const auto digit = [&](std::size_t below) {
    return below <= top ? static_cast<std::uint64_t>(digits[top - below]) : 0;
  };
  // The upper 64 bits; the lowest of them stands for all that are lower.
  std::uint64_t bits = digit(0) << kBitsOfDigit | digit(1);
  const int shift =
      bits == 0 ? 0 : std::countl_zero(bits);  // less than 32, unless the sum is small
  const std::uint64_t next = digit(2) << kBitsOfDigit | digit(3);
  bool has_rest =
      top >= 4 && std::any_of(digits.begin(), digits.begin() + static_cast<std::ptrdiff_t>(top) - 3,
                              [](std::int64_t lower) { return lower != 0; });
  if (shift > 0) {
    bits = bits << shift | next >> (64 - shift);
    has_rest = has_rest || (next << shift) != 0;
  } else {
    has_rest = has_rest || next != 0;
  }
  if (has_rest) bits |= 1;
  const int place = (static_cast<int>(top) - 1) * kBitsOfDigit + kLowestExponent - shift;
  const double value = std::ldexp(static_cast<double>(bits), place);
  return is_negative ? -value : value;
}

}  // namespace lockstep::inline internal
