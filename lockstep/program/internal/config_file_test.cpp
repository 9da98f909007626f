#include "lockstep/program/internal/config_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class ConfigFileTest : public testing::Test {
 protected:
  // Its entries as "name=value@line", or the error without the folder's name.
  std::string read(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    std::ofstream(path) << text;
    const std::string prefix = path.string();
    const auto shown = [&](std::string place) {
      const auto at = place.find(prefix);
      return at == std::string::npos ? place : place.replace(at, prefix.size(), name);
    };
    try {
      std::string all;
      for (const ConfigEntry& entry : read_config_file(path)) {
        all += entry.name + "=" + entry.value + "@" + shown(entry.place) + " ";
      }
      return all;
    } catch (const UsageError& error) {
      return shown(error.what());
    }
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "config-"};
};

TEST_F(ConfigFileTest, TomlGivesValuesInTheOrderOfItsLines) {
  EXPECT_EQ(read("a.toml",
                 "zeta = \"10ep\"\nbatch_size = 64  # a comment\nlr = 1e-3\nflag = true\n"
                 "[ddp]\nbucket_cap_mb = 0.5\n[a.b]\nc = ''\n"),
            "zeta=10ep@a.toml:1 batch_size=64@a.toml:2 lr=0.001@a.toml:3 flag=true@a.toml:4 "
            "ddp.bucket_cap_mb=0.5@a.toml:6 a.b.c=@a.toml:8 ");
  EXPECT_EQ(read("empty.toml", ""), "");
}

TEST_F(ConfigFileTest, JsonGivesTheSame) {
  EXPECT_EQ(
      read("a.json",
           R"({"zeta": "10ep", "batch_size": 64, "lr": 1e-3, "flag": true, "ddp": {"x": 0.5}})"),
      "zeta=10ep@a.json batch_size=64@a.json lr=0.001@a.json flag=true@a.json ddp.x=0.5@a.json ");
  EXPECT_EQ(read("empty.json", "{}"), "");
}

TEST_F(ConfigFileTest, WhatIsNoOptionIsRefusedWithItsLine) {
  EXPECT_EQ(read("a.toml", "a = 1\nb = [1, 2]\n"),
            "a.toml:2: b is a list; an option is a text, a number, or true or false");
  EXPECT_EQ(read("a.toml", "[x]\nb = 2026-01-01\n"),
            "a.toml:2: x.b is a date; an option is a text, a number, or true or false");
  EXPECT_EQ(read("a.json", R"({"a": null})"),
            "a.json: a is null; an option is a text, a number, or true or false");
  EXPECT_EQ(read("a.json", "[1]"), "a.json: not a JSON object, {\"name\": value, …}");
  EXPECT_EQ(read("a.json", "{\n\"a\": 1,\n\"b\" 2}"), "a.json:3: invalid JSON");
  EXPECT_EQ(read("a.json", ""), "a.json:1: invalid JSON");
  EXPECT_TRUE(read("a.toml", "a = 1\nb\n").starts_with("a.toml:2: invalid TOML: "));
  EXPECT_TRUE(read("a.toml", "a = 1\na = 2\n").starts_with("a.toml:2: invalid TOML: "));
  EXPECT_EQ(read("a.yaml", "a: 1").substr(0, 10), "options of");
  EXPECT_THROW(read_config_file(folder_.path() / "none.toml"), SystemError);
}

}  // namespace
}  // namespace lockstep
