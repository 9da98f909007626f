#include "lockstep/cli/data_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(DataOptions, TakesTheFlagBeforeAndAfterTheFolder) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"audit", "dir", "--json"}, {"audit", "--json", "dir"}}) {
    const DataOptions options = parse_data_options(arguments);
    EXPECT_FALSE(options.help);
    EXPECT_EQ(options.folder, "dir");
    EXPECT_TRUE(options.json);
  }
  EXPECT_FALSE(parse_data_options({"audit", "dir"}).json);
}

TEST(DataOptions, HelpsWhereverItIsAsked) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"-h"}, {"help"}, {"audit", "--help"}}) {
    EXPECT_TRUE(parse_data_options(arguments).help);
  }
}

TEST(DataOptions, SaysWhatIsWrong) {
  const auto error_of = [](const std::vector<std::string>& arguments) -> std::string {
    try {
      parse_data_options(arguments);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const std::string text = error_of(arguments);
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  expect({}, "no action; as in: lockstep data audit runs/digits/data");
  expect({"adit", "x"}, "unknown action 'adit'; as in: lockstep data audit");
  expect({"audit"}, "of which folder?");
  expect({"audit", "x", "y"}, "y");
  expect({"audit", "x", "--tofu=1"}, "--tofu");
}

}  // namespace
}  // namespace lockstep
