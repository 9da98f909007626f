#include "lockstep/cli/data_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Action = DataOptions::Action;

TEST(DataOptions, TakesFlagsBeforeAndAfterTheName) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"get", "photos32", "--to=dir", "--force", "--timeout", "7"},
        std::vector<std::string>{"get", "--force", "--timeout=7", "--to", "dir", "photos32"}}) {
    const DataOptions options = parse_data_options(arguments);
    EXPECT_EQ(options.action, Action::kGet);
    EXPECT_EQ(options.name, "photos32");
    EXPECT_EQ(options.folder, "dir");
    EXPECT_TRUE(options.force);
    EXPECT_EQ(options.timeout.count(), 7);
  }
}

TEST(DataOptions, TakesMirrorsRecipesAndLists) {
  const DataOptions get = parse_data_options({"get", "--recipe=r.json", "--index-url=https://m"});
  EXPECT_EQ(get.name, "");
  EXPECT_EQ(get.recipe_file, "r.json");
  EXPECT_EQ(get.index_url, "https://m");
  const DataOptions list = parse_data_options({"list", "--json"});
  EXPECT_EQ(list.action, Action::kList);
  EXPECT_TRUE(list.json);
}

TEST(DataOptions, HelpsWhereverItIsAsked) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, std::vector<std::string>{"-h"},
        std::vector<std::string>{"help"}, std::vector<std::string>{"get", "--help"},
        std::vector<std::string>{"list", "-h"}}) {
    EXPECT_EQ(parse_data_options(arguments).action, Action::kHelp);
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
  expect({}, "get or list");
  expect({"gte", "x"}, "unknown action 'gte'; did you mean lockstep data get?");
  expect({"get"}, "which one?");
  expect({"get", "x", "y"}, "y");
  expect({"get", "x", "--tofu=1"}, "--tofu");
  for (const char* timeout : {"0", "-1", "1.5", "x", "100000"}) {
    expect({"get", "x", std::string("--timeout=") + timeout}, "give whole seconds from 1");
  }
}

}  // namespace
}  // namespace lockstep
