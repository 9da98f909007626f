#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

// Parsers of flag values. Errors: UsageError with the flag, the value and the expected form.

/// An integer; `what` is the expected form in the error, such as "whole seconds".
std::int64_t integer_of(const std::string& flag, const std::string& text, std::int64_t least,
                        std::int64_t most, const char* what = "a whole number");
int int_of(const std::string& flag, const std::string& text, int least);

/// "0,2,5": integers from 0.
std::vector<int> local_ranks_of(const std::string& flag, const std::string& text);

/// Upper bound of durations: four months; more is a mistake.
inline constexpr double kLongestSeconds = 1e7;

/// Seconds, possibly with a fraction, to whole milliseconds.
std::chrono::milliseconds seconds_of(const std::string& flag, const std::string& text, double least,
                                     double most = kLongestSeconds);

}  // namespace lockstep::inline internal
