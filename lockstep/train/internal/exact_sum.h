#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::inline internal {

/// A sum of doubles without rounding: the same bits in any order of the terms and on any number of
/// ranks. Sums of several ranks are added word by word (kSum of int64).
///
/// It is a long accumulator: 32-bit digits of a fixed-point number, the lowest (2^-1074) first,
/// each in a word whose upper half takes carries. Three words follow that count the terms
/// +infinity, -infinity and NaN. All words 0: an empty sum.
///
/// Source: U. Kulisch, "Computer Arithmetic and Validity", 2013.
/// Threads: one at a time for each sum.
inline constexpr std::size_t kDigitsOfExactSum = 68;
inline constexpr std::size_t kWordsOfExactSum = kDigitsOfExactSum + 3;

/// Adds a term. Each word stays within 2^33, so that sums of 2^30 ranks can be added.
/// `sum`: kWordsOfExactSum words.
void add_exactly(std::span<std::int64_t> sum, double term);

/// The double nearest to the sum.
double rounded_sum(std::span<const std::int64_t> sum);

}  // namespace lockstep::inline internal
