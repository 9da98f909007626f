#include "launcher/command_line/command_help.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

CommandHelp example() {
  return {.name = "lockstep show",
          .usage = "FILE [options]",
          .description = "Shows a file.",
          .groups = {{.title = "",
                      .entries = {{.name = "FILE", .text = "the file", .is_argument = true},
                                  {.name = "lines",
                                   .letter = 'n',
                                   .value = "N",
                                   .text = "number of lines\n(default all)"}}},
                     {.title = "Others", .entries = {{.name = "json", .text = "print JSON"}}}},
          .notes = "Exit code: 0."};
}

TEST(CommandHelp, AlignsTextsOverAllGroups) {
  EXPECT_EQ(help_text(example()),
            "Usage: lockstep show FILE [options]\n\n"
            "Shows a file.\n\n"
            "  FILE           the file\n"
            "  -n, --lines=N  number of lines\n"
            "                 (default all)\n\n"
            "Others:\n"
            "  --json         print JSON\n\n"
            "Exit code: 0.\n");
}

TEST(CommandHelp, NamesFlagsForTheParser) {
  const std::vector<FlagName> names = flag_names(example());
  ASSERT_EQ(names.size(), 2U);
  EXPECT_EQ(names[0].name, "lines");
  EXPECT_EQ(names[0].letter, 'n');
  EXPECT_TRUE(names[0].takes_value);
  EXPECT_EQ(names[1].name, "json");
  EXPECT_FALSE(names[1].takes_value);
}

TEST(CommandHelp, IsOneLineOfJson) {
  const std::string text = describe(example());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["groups"][0]["entries"][1]["text"], "number of lines\n(default all)");
  EXPECT_EQ(json["groups"][1]["title"], "Others");
  EXPECT_TRUE(json["actions"].empty());
}

}  // namespace
}  // namespace lockstep
