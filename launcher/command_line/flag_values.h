#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

// Values of flags. Errors: UsageError that names the flag, the value and what to give.

/// A whole number; `what` is what the error asks for, as in "whole seconds".
std::int64_t integer_of(const std::string& flag, const std::string& text, std::int64_t least,
                        std::int64_t most, const char* what = "a whole number");
int int_of(const std::string& flag, const std::string& text, int least);

/// "0,2,5": whole numbers from 0.
std::vector<int> local_ranks_of(const std::string& flag, const std::string& text);

/// Four months; more is a mistake.
inline constexpr double kLongestSeconds = 1e7;

/// Seconds, with a fraction or without, to whole milliseconds.
std::chrono::milliseconds seconds_of(const std::string& flag, const std::string& text, double least,
                                     double most = kLongestSeconds);

}  // namespace lockstep::inline internal
