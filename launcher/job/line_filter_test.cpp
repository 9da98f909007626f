#include "launcher/job/line_filter.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<std::string> texts_of(const std::string& list) {
  return parse_line_filter(list).texts();
}

TEST(LineFilter, TwoCommasAreOneOfATextAsInTorchrun) {
  EXPECT_EQ(texts_of("apple,orange"), (std::vector<std::string>{"apple", "orange"}));
  EXPECT_EQ(texts_of("a,,b"), (std::vector<std::string>{"a,b"}));
  EXPECT_EQ(texts_of("a,,,b"), (std::vector<std::string>{"a,", "b"}));
  EXPECT_EQ(texts_of(",,,,"), (std::vector<std::string>{",,"}));
  EXPECT_EQ(texts_of("a,"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(texts_of(""), std::vector<std::string>{});
}

TEST(LineFilter, SelectsLinesThatHoldAnyOfTheTexts) {
  const LineFilter filter = parse_line_filter("loss=,error");
  EXPECT_TRUE(filter.selects("step 3 loss=0.5"));
  EXPECT_TRUE(filter.selects("an error"));
  EXPECT_FALSE(filter.selects("Error"));
  EXPECT_FALSE(filter.selects(""));
  EXPECT_TRUE(parse_line_filter("x,").selects("anything"));
  EXPECT_FALSE(LineFilter().selects("anything"));
  EXPECT_TRUE(LineFilter().selects_none());
}

}  // namespace
}  // namespace lockstep
