#include "launcher/logs/line_prefixer.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(LinePrefixer, GivesCompleteLinesOnly) {
  LinePrefixer lines("[0]:");
  EXPECT_EQ(lines.feed("one\ntw"), "[0]:one\n");
  EXPECT_EQ(lines.feed("o"), "");
  EXPECT_EQ(lines.feed("\n\nthree\n"), "[0]:two\n[0]:\n[0]:three\n");
  EXPECT_EQ(lines.flush(), "");
}

TEST(LinePrefixer, CompletesTheLastLine) {
  LinePrefixer lines("[0]:");
  EXPECT_EQ(lines.feed("no end"), "");
  EXPECT_EQ(lines.flush(), "[0]:no end\n");
  EXPECT_EQ(lines.flush(), "");
}

TEST(LinePrefixer, LeavesOutWhatItsFilterDoesNotSelect) {
  LinePrefixer lines("[0]:", parse_line_filter("a,0"));
  EXPECT_EQ(lines.feed("bat\nbit\nc"), "[0]:bat\n");
  EXPECT_EQ(lines.feed("ar\nx"), "[0]:car\n");
  EXPECT_EQ(lines.flush(), "") << "the prefix is not searched";
}

TEST(LinePrefixer, IsIndifferentToHowTheStreamIsCut) {
  const std::string text = "a\n\nbc\r\ndef\n\n\nrest";
  const std::string expected = ">a\n>\n>bc\r\n>def\n>\n>\n>rest\n";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    LinePrefixer lines(">");
    std::string shown;
    for (std::size_t i = 0; i < text.size(); i += size) shown += lines.feed(text.substr(i, size));
    EXPECT_EQ(shown + lines.flush(), expected) << "chunks of " << size;
  }
}

TEST(LinePrefixer, CutsALineThatNeverEnds) {
  const std::size_t longest = LinePrefixer::kLongestLineBytes;
  for (const std::size_t size : {longest - 1, longest, longest + 1, 2 * longest}) {
    LinePrefixer lines("");
    const std::string text(size, 'x');
    std::string shown = lines.feed(text);
    shown += lines.flush();
    EXPECT_EQ(std::count(shown.begin(), shown.end(), 'x'), static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'),
              static_cast<std::ptrdiff_t>((size + longest - 1) / longest));
  }
}

}  // namespace
}  // namespace lockstep
