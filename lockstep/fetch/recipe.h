#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// One file that a data set is made of.
struct RecipeSource {
  /// Where it comes from: a package of the index, or a URL. One of them is empty.
  std::string package;
  std::string url;
  std::string file_name;
  std::uint64_t size_bytes = 0;
  /// What it must be; one of them may be empty.
  std::string sha256;
  std::string md5;
  /// What to unpack of it; nothing: the file itself is wanted.
  std::vector<std::string> members;
};

/// How a data set is made: the sources and what becomes of them. `lockstep data list --json` shows
/// those that are built in.
struct Recipe {
  enum class Make {
    kFiles,  ///< the files as they are
    kText,   ///< all of them, joined to one
    kCrops,  ///< squares cut out of photographs, each photograph a class, as CIFAR-100 records
  };

  std::string name;
  std::string summary;
  std::vector<RecipeSource> sources;
  Make make = Make::kFiles;
  /// For kText.
  std::string text_file;
  /// For kCrops: at most this many squares of each photograph.
  std::size_t train_crops = 0;
  std::size_t test_crops = 0;
  /// Whose the parts are and on what terms; lines of LICENSES.txt.
  std::vector<std::string> licences;
  /// The recipe itself, as JSON: kept beside the data.
  std::string json;
};

/// The files, without paths, that a recipe's sources give, in its order.
std::vector<std::string> recipe_files(const Recipe& recipe);

/// True when both make the same bytes, wherever these come from and whatever is said about them.
bool makes_same_data(const Recipe& first, const Recipe& second);

/// A recipe, or a list of them. Nothing is taken that is not known. Errors: UsageError naming
/// `origin`, the field and what is wrong with it.
std::vector<Recipe> parse_recipes(const std::string& json, const std::string& origin);

/// The same, of those that are compiled in. builtin_recipes.cpp is the table.
std::vector<Recipe> builtin_recipes();

/// What a data set's folder holds beside its data.
inline constexpr const char* kLicencesFile = "LICENSES.txt";
inline constexpr const char* kRecipeFile = "recipe.json";

}  // namespace lockstep
