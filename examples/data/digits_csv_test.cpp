#include "examples/data/digits_csv.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace examples {
namespace {

using lockstep::CorruptFile;

std::string digits_line(const std::string& first_pixel = "0", const std::string& label = "7") {
  std::string line = first_pixel;
  for (std::size_t i = 1; i < kDigitsPixels; ++i) line += "," + std::to_string(i % 17);
  return line + "," + label;
}

std::string error_of(const std::string& text) {
  try {
    parse_digits_csv(text, "digits.csv");
  } catch (const CorruptFile& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& text, const std::string& message) {
  EXPECT_NE(error_of(text).find(message), std::string::npos) << error_of(text);
}

TEST(DigitsCsv, ReadsPixelsAndLabels) {
  for (const char* line_end : {"\n", "\r\n"}) {
    const DigitsTable table =
        parse_digits_csv(digits_line("16", "0") + line_end + digits_line() + line_end, "f");
    EXPECT_EQ(table.labels, (std::vector<std::uint8_t>{0, 7}));
    ASSERT_EQ(table.pixels.size(), 2 * kDigitsPixels);
    EXPECT_EQ(table.pixels[0], 16);
    EXPECT_EQ(table.pixels[kDigitsPixels + 63], 63 % 17);
  }
  EXPECT_EQ(parse_digits_csv(digits_line(), "f").labels.size(), 1U) << "no newline at the end";
}

TEST(DigitsCsv, NamesTheFileTheLineAndWhatIsWrongWithIt) {
  const std::string good = digits_line() + "\n";
  expect_refused("", "digits.csv is empty");
  expect_refused(good + "1,2,3\n", "digits.csv, line 2: 3 columns instead of 65");
  expect_refused(good + "\n" + good, "line 2: 1 columns instead of 65");
  expect_refused(good + digits_line() + ",1", "line 2: 66 columns");
  expect_refused(digits_line("x"), "line 1: column 1 is not a number: 'x'");
  expect_refused(digits_line(""), "column 1 is not a number: ''");
  expect_refused(digits_line(" 3"), "column 1 is not a number: ' 3'");
  expect_refused(digits_line("3.5"), "column 1 is not a number: '3.5'");
  expect_refused(digits_line("17"), "pixel '17' in column 1 is out of range");
  expect_refused(digits_line("-1"), "pixel '-1' in column 1 is out of range");
  expect_refused(digits_line("99999999999"), "pixel '99999999999' in column 1 is out of range");
  expect_refused(digits_line("0", "10"), "label '10' in column 65 is out of range");
}

TEST(DigitsCsv, QuotesDamagedTextShortAndPrintable) {
  const std::string message = error_of(digits_line(std::string(1000, '\x01')));
  EXPECT_NE(message.find("'????????????????????…'"), std::string::npos) << message;
}

}  // namespace
}  // namespace examples
