#include "lockstep/fetch/recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

#include "lockstep/base/checksum_list.h"
#include "lockstep/base/cifar_format.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/archive_members.h"
#include "lockstep/fetch/url.h"

namespace lockstep {
namespace {

/// Keeps the order of the fields, which readers expect again.
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostCrops = 1'000'000;
constexpr std::uint64_t kMostSourceBytes = std::uint64_t{1} << 40;
constexpr std::size_t kSha256Digits = 64;
constexpr std::size_t kMd5Digits = 32;

// An object of a recipe: what is asked for is marked, what is left over is refused.
class Fields {
 public:
  Fields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json_.is_object()) refuse("it must be an object, {…}");
  }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw UsageError(concat("recipe ", place_, ": ", parts...));
  }

  const Json* find(const char* name) {
    known_.insert(name);
    const auto field = json_.find(name);
    return field == json_.end() ? nullptr : &*field;
  }

  std::string text(const char* name) {
    const Json* const field = find(name);
    if (field == nullptr) return "";
    if (!field->is_string()) refuse("'", name, "' must be a text");
    return field->get<std::string>();
  }

  std::string required_text(const char* name) {
    std::string value = text(name);
    if (value.empty()) refuse("'", name, "' is missing");
    return value;
  }

  std::uint64_t count(const char* name, std::uint64_t most) {
    const Json* const field = find(name);
    const bool good = field != nullptr && field->is_number_unsigned() &&
                      field->get<std::uint64_t>() > 0 && field->get<std::uint64_t>() <= most;
    if (!good) refuse("'", name, "' must be an integer from 1 to ", most);
    return field->get<std::uint64_t>();
  }

  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> values;
    const Json* const field = find(name);
    if (field == nullptr) return values;
    if (!field->is_array()) refuse("'", name, "' must be a list, […]");
    for (const Json& value : *field) {
      if (!value.is_string()) refuse("'", name, "' must be a list of texts");
      values.push_back(value.get<std::string>());
    }
    return values;
  }

  void refuse_others() const {
    for (const auto& field : json_.items()) {
      if (!known_.contains(field.key())) refuse("there is no field '", field.key(), "'");
    }
  }

  const std::string& place() const { return place_; }

 private:
  const Json& json_;
  std::string place_;
  std::set<std::string> known_;
};

// Of the folder itself: no path, not hidden, not one that is written beside the data.
void check_file_name(const Fields& fields, const std::string& name) {
  const bool plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
                     std::none_of(name.begin(), name.end(),
                                  [](char c) { return static_cast<unsigned char>(c) < ' '; });
  const bool taken = name == kChecksumListName || name == kLicencesFile || name == kRecipeFile;
  if (!plain || taken) fields.refuse("'", name, "' cannot be the name of a file of a data set");
}

std::string checksum(Fields& fields, const char* name, std::size_t digits) {
  std::string value = fields.text(name);
  const bool hexadecimal = value.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!value.empty() && (value.size() != digits || !hexadecimal)) {
    fields.refuse("'", name, "' must be ", digits, " lower-case hexadecimal digits");
  }
  return value;
}

std::string last_part(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

RecipeSource parse_source(const Json& json, const std::string& place) {
  Fields fields(json, place);
  RecipeSource source{.package = fields.text("package"),
                      .url = fields.text("url"),
                      .file_name = fields.text("file"),
                      .size_bytes = fields.count("bytes", kMostSourceBytes),
                      .sha256 = checksum(fields, "sha256", kSha256Digits),
                      .md5 = checksum(fields, "md5", kMd5Digits),
                      .members = fields.texts("members")};
  if (source.package.empty() == source.url.empty()) {
    fields.refuse("give either 'package' and 'file', or 'url'");
  }
  if (!source.url.empty()) {
    url_scheme(source.url);
    if (source.file_name.empty()) source.file_name = last_part(shown_url(source.url));
  }
  check_file_name(fields, source.file_name);
  if (source.sha256.empty() && source.md5.empty()) {
    fields.refuse("give 'sha256', or 'md5' where only that is known");
  }
  for (const std::string& member : source.members) {
    if (leaves_folder(member)) fields.refuse("member '", member, "' leaves the archive's folder");
    check_file_name(fields, last_part(member));
  }
  fields.refuse_others();
  return source;
}

Recipe::Make parse_make(Fields& fields) {
  const std::string make = fields.required_text("make");
  if (make == "files") return Recipe::Make::kFiles;
  if (make == "text") return Recipe::Make::kText;
  if (make == "crops") return Recipe::Make::kCrops;
  fields.refuse("'make' is '", make, "'; choose files, text or crops");
}

void check_files(const Fields& fields, const Recipe& recipe) {
  std::set<std::string> names;
  for (const std::string& name : recipe_files(recipe)) {
    if (!names.insert(name).second) fields.refuse("two files are called ", name);
  }
  if (recipe.make == Recipe::Make::kCrops && names.size() > kCifar100Classes) {
    fields.refuse("there are ", names.size(), " photographs, more than the ", kCifar100Classes,
                  " classes of the format");
  }
}

Recipe parse_recipe(const Json& json, const std::string& origin) {
  Fields fields(json, origin);
  Recipe recipe;
  recipe.name = fields.required_text("name");
  if (recipe.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") !=
      std::string::npos) {
    fields.refuse("'name' may have lower-case letters, digits, '-' and '_', but is '", recipe.name,
                  "'");
  }
  recipe.summary = fields.required_text("summary");
  const Json* const sources = fields.find("sources");
  if (sources == nullptr || !sources->is_array() || sources->empty()) {
    fields.refuse("'sources' must be a list of at least one file");
  }
  for (const Json& source : *sources) {
    recipe.sources.push_back(parse_source(
        source, concat(origin, ", source ", recipe.sources.size() + 1, " of '", recipe.name, "'")));
  }
  recipe.make = parse_make(fields);
  if (recipe.make == Recipe::Make::kText) {
    recipe.text_file = fields.required_text("text_file");
    check_file_name(fields, recipe.text_file);
  }
  if (recipe.make == Recipe::Make::kCrops) {
    recipe.train_crops = fields.count("train_crops", kMostCrops);
    recipe.test_crops = fields.count("test_crops", kMostCrops);
  }
  recipe.licences = fields.texts("licences");
  if (recipe.licences.empty()) fields.refuse("'licences' must say whose the data are");
  check_files(fields, recipe);
  fields.refuse_others();
  recipe.json = json.dump(2) + "\n";
  return recipe;
}

}  // namespace

std::vector<std::string> recipe_files(const Recipe& recipe) {
  std::vector<std::string> files;
  for (const RecipeSource& source : recipe.sources) {
    if (source.members.empty()) files.push_back(source.file_name);
    for (const std::string& member : source.members) files.push_back(last_part(member));
  }
  return files;
}

bool makes_same_data(const Recipe& first, const Recipe& second) {
  const auto what = [](const Recipe& recipe) {
    return std::tie(recipe.make, recipe.text_file, recipe.train_crops, recipe.test_crops);
  };
  const auto of = [](const RecipeSource& source) {
    return std::tie(source.file_name, source.size_bytes, source.sha256, source.md5, source.members);
  };
  return what(first) == what(second) &&
         std::equal(first.sources.begin(), first.sources.end(), second.sources.begin(),
                    second.sources.end(),
                    [&](const RecipeSource& a, const RecipeSource& b) { return of(a) == of(b); });
}

std::vector<Recipe> parse_recipes(const std::string& json, const std::string& origin) {
  Json parsed;
  try {
    parsed = Json::parse(json);
  } catch (const Json::parse_error& error) {
    throw UsageError(concat("recipe ", origin, " is no JSON: ", error.what()));
  }
  std::vector<Recipe> recipes;
  if (!parsed.is_array()) return {parse_recipe(parsed, origin)};
  for (const Json& recipe : parsed) recipes.push_back(parse_recipe(recipe, origin));
  return recipes;
}

}  // namespace lockstep
