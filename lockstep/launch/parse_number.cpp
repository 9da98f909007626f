#include "lockstep/launch/parse_number.h"

#include <charconv>
#include <cmath>

namespace lockstep {
namespace {

template <class Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int> parse_integer(std::string_view text) {
  return parse_whole<int>(text);
}

std::optional<double> parse_decimal(std::string_view text) {
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace lockstep
