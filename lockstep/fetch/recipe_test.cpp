#include "lockstep/fetch/recipe.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A recipe with one piece of text replaced.
std::string recipe_text(const std::string& old_part = "", const std::string& new_part = "") {
  std::string text = R"({"name": "mine", "summary": "my images", "licences": ["mine"],
    "make": "files", "sources": [
      {"url": "https://user:secret@host/mine.tar.gz?x=1", "bytes": 12, "md5": "<md5>",
       "members": ["mine/train.bin", "mine/test.bin"]},
      {"package": "name", "file": "name-1.whl", "bytes": 1, "sha256": "<sha256>"}]})";
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  if (!old_part.empty()) replace(old_part, new_part);
  if (text.find("<md5>") != std::string::npos) replace("<md5>", std::string(32, 'a'));
  if (text.find("<sha256>") != std::string::npos) replace("<sha256>", std::string(64, 'b'));
  return text;
}

std::string error_of(const std::string& text) {
  try {
    parse_recipes(text, "mine.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& text, const std::string& message) {
  EXPECT_NE(error_of(text).find(message), std::string::npos) << error_of(text);
}

TEST(Recipe, IsReadWithItsSources) {
  const std::vector<Recipe> recipes = parse_recipes(recipe_text(), "mine.json");
  ASSERT_EQ(recipes.size(), 1U);
  const Recipe& recipe = recipes.front();
  EXPECT_EQ(recipe.name, "mine");
  EXPECT_EQ(recipe.sources.at(0).file_name, "mine.tar.gz") << "from the URL";
  EXPECT_EQ(recipe.sources.at(0).size_bytes, 12U);
  EXPECT_EQ(recipe.sources.at(1).package, "name");
  EXPECT_EQ(recipe_files(recipe),
            (std::vector<std::string>{"train.bin", "test.bin", "name-1.whl"}));
  EXPECT_EQ(parse_recipes(recipe.json, "again").front().json, recipe.json);
}

TEST(Recipe, ListsAreReadInOrder) {
  const auto recipes = parse_recipes(
      "[" + recipe_text() + "," + recipe_text("\"mine\"", "\"other\"") + "]", "two.json");
  ASSERT_EQ(recipes.size(), 2U);
  EXPECT_EQ(recipes[1].name, "other");
}

TEST(Recipe, SaysWhatIsWrong) {
  expect_refused("{", "recipe mine.json is no JSON");
  expect_refused("3", "must be an object");
  expect_refused(recipe_text("\"name\": \"mine\", ", ""), "'name' is missing");
  expect_refused(recipe_text("\"mine\"", "\"../mine\""), "'name' may have lower-case letters");
  expect_refused(recipe_text("\"summary\": \"my images\"", "\"summary\": 3"), "must be a text");
  expect_refused(recipe_text("[\"mine\"]", "[]"), "'licences' must say");
  expect_refused(recipe_text("\"files\"", "\"magic\""), "'make' is 'magic'; choose files, text");
  expect_refused(recipe_text("\"files\"", "\"text\""), "'text_file' is missing");
  expect_refused(recipe_text("\"files\"", "\"crops\""), "'train_crops' must be an integer from 1");
  expect_refused(recipe_text("\"make\"", "\"mk\""), "'make' is missing");
  expect_refused(recipe_text("\"make\"", "\"extra\": 1, \"make\""), "no field 'extra'");
}

TEST(Recipe, SaysWhatIsWrongWithASource) {
  const std::string source = "source 1 of 'mine'";
  expect_refused(recipe_text("\"bytes\": 12", "\"bytes\": 0"), source);
  expect_refused(recipe_text("\"bytes\": 12", "\"bytes\": -1"), "'bytes' must be an integer");
  expect_refused(recipe_text("<md5>", "00"), "'md5' must be 32 lower-case hexadecimal digits");
  expect_refused(recipe_text("\"md5\": \"<md5>\",", ""), "give 'sha256'");
  expect_refused(recipe_text("https://user:secret@", "ftp://"), "is of kind 'ftp'");
  expect_refused(recipe_text("\"url\"", "\"uri\""), "give either 'package' and 'file', or 'url'");
  expect_refused(recipe_text("\"package\"", "\"url\""), "is no URL");
  expect_refused(recipe_text("\"package\"", "\"url\": \"https://h/x\", \"package\""), "either");
  expect_refused(recipe_text("name-1.whl", "../name-1.whl"), "cannot be the name of a file");
}

TEST(Recipe, RefusesFilesThatWouldLieElsewhereOrOverOthers) {
  expect_refused(recipe_text("mine/test.bin", "../test.bin"), "leaves the archive's folder");
  expect_refused(recipe_text("mine/test.bin", "/test.bin"), "leaves the archive's folder");
  expect_refused(recipe_text("mine/test.bin", "other/train.bin"), "two files are called train.bin");
  for (const char* name : {"SHA256SUMS", "LICENSES.txt", "recipe.json", ".work", ""}) {
    expect_refused(recipe_text("test.bin", name), "cannot be the name of a file");
  }
}

TEST(Recipe, MakesTheSameDataWhateverItIsCalledAndWhereverItComesFrom) {
  const auto same = [](const std::string& old_part, const std::string& new_part) {
    return makes_same_data(parse_recipes(recipe_text(), "one").front(),
                           parse_recipes(recipe_text(old_part, new_part), "other").front());
  };
  EXPECT_TRUE(same("my images", "said in other words"));
  EXPECT_TRUE(same("host/", "mirror/"));
  EXPECT_FALSE(same("\"bytes\": 12", "\"bytes\": 13"));
  EXPECT_FALSE(same("<md5>", std::string(32, 'c')));
  EXPECT_FALSE(same("<sha256>", std::string(64, 'c')));
  EXPECT_FALSE(same(", \"mine/test.bin\"", ""));
  EXPECT_FALSE(same("name-1.whl", "name-2.whl"));
  EXPECT_FALSE(same("\"files\"", "\"text\", \"text_file\": \"a\""));
  const auto crops = [](const char* counts) {
    const std::string make = std::string("\"crops\", ") + counts;
    return parse_recipes(recipe_text("\"files\"", make), "crops").front();
  };
  const Recipe recipe = crops(R"("train_crops": 3, "test_crops": 2)");
  EXPECT_FALSE(makes_same_data(recipe, crops(R"("train_crops": 4, "test_crops": 2)")));
  EXPECT_FALSE(makes_same_data(recipe, crops(R"("train_crops": 3, "test_crops": 3)")));
}

TEST(Recipe, ThoseBuiltInAreGood) {
  const std::vector<Recipe> recipes = builtin_recipes();
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes) {
    names.push_back(recipe.name);
    for (const RecipeSource& source : recipe.sources) {
      EXPECT_FALSE(source.sha256.empty()) << source.file_name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"photos32", "shakespeare", "cifar100"}));
  EXPECT_EQ(recipe_files(recipes[0]).size(), 12U);
  EXPECT_EQ(recipe_files(recipes[1]).size(), 37U);
}

}  // namespace
}  // namespace lockstep
