#include "examples/data/digits_csv.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace examples {
namespace {

using lockstep::concat;
using lockstep::CorruptFile;

constexpr std::size_t kColumns = kDigitsPixels + 1;

struct Place {
  const std::string& file_name;
  std::size_t line;  ///< from 1, as editors count
};

template <class... Parts>
[[noreturn]] void refuse(const Place& place, const Parts&... parts) {
  throw CorruptFile(concat("digits dataset ", place.file_name, ", line ", place.line, ": ",
                           parts..., "; each line has ", kDigitsPixels, " pixels of 0 to ",
                           kDigitsPixelMax, " and a label of 0 to ", kDigitsClasses - 1));
}

// A damaged file may hold anything: what is quoted of it is short and printable.
std::string quoted(std::string_view field) {
  constexpr std::size_t kLongestQuote = 20;
  std::string text(field.substr(0, kLongestQuote));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + text + (field.size() > kLongestQuote ? "…'" : "'");
}

// Takes the text up to `separator`, or all of it, off the front.
std::string_view take_until(char separator, std::string_view& text) {
  const std::size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

std::uint8_t parse_field(std::string_view field, std::size_t column, const Place& place) {
  const bool is_label = column == kDigitsPixels;
  const int largest = is_label ? kDigitsClasses - 1 : kDigitsPixelMax;
  int value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error == std::errc::invalid_argument || stop != field.data() + field.size()) {
    refuse(place, "column ", column + 1, " is not a number: ", quoted(field));
  }
  if (error != std::errc() || value < 0 || value > largest) {
    refuse(place, is_label ? "label " : "pixel ", quoted(field), " in column ", column + 1,
           " is out of range");
  }
  return static_cast<std::uint8_t>(value);
}

void parse_line(std::string_view line, const Place& place, DigitsTable& table) {
  const auto columns = static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')) + 1;
  if (columns != kColumns) refuse(place, columns, " columns instead of ", kColumns);
  for (std::size_t column = 0; column < kDigitsPixels; ++column) {
    table.pixels.push_back(parse_field(take_until(',', line), column, place));
  }
  table.labels.push_back(parse_field(line, kDigitsPixels, place));
}

}  // namespace

DigitsTable parse_digits_csv(std::string_view text, const std::string& file_name) {
  if (text.empty()) {
    throw CorruptFile(concat("digits dataset ", file_name, " is empty: copy it again"));
  }
  DigitsTable table;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    std::string_view line = take_until('\n', text);
    if (line.ends_with('\r')) line.remove_suffix(1);
    parse_line(line, {file_name, line_number}, table);
  }
  return table;
}

}  // namespace examples
