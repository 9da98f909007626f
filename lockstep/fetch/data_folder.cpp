#include "lockstep/fetch/data_folder.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "lockstep/base/checksum_list.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/digest.h"
#include "lockstep/fetch/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Kind = DataFolderState::Kind;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw SystemError("read the folder " + folder.string(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// Another version may word a recipe in another way, or with fields that are not known here.
bool was_made_by(const Recipe& recipe, const fs::path& folder) {
  const std::string json = read_text_file(folder / kRecipeFile);
  try {
    const std::vector<Recipe> recipes = parse_recipes(json, (folder / kRecipeFile).string());
    return recipes.size() == 1 && makes_same_data(recipes.front(), recipe);
  } catch (const UsageError&) {
    return false;
  }
}

std::string licence_text(const Recipe& recipe) {
  std::string text = recipe.name + ": " + recipe.summary + "\n\n";
  for (const std::string& line : recipe.licences) text += line + "\n";
  return text;
}

}  // namespace

DataFolderState inspect_data_folder(const fs::path& folder, const Recipe& recipe) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return {};
  if (!fs::is_directory(folder, ignored)) return {Kind::kForeign, "it is no folder"};
  const std::vector<std::string> names = names_in(folder);
  if (names.empty()) return {};
  const auto holds = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  for (const char* name : {kChecksumListName, kRecipeFile}) {
    if (!holds(name)) return {Kind::kForeign, std::string("it holds files, but no ") + name};
  }
  std::vector<FileChecksum> list;
  try {
    list = parse_checksum_list(read_text_file(folder / kChecksumListName), kChecksumListName);
  } catch (const CorruptFile& error) {
    return {Kind::kForeign, error.what()};
  }
  for (const std::string& name : names) {
    const bool listed = std::any_of(list.begin(), list.end(),
                                    [&](const FileChecksum& file) { return file.name == name; });
    if (!listed && name != kChecksumListName) {
      return {Kind::kForeign, "it holds " + name + ", which is no file of the data set"};
    }
  }
  for (const FileChecksum& file : list) {
    if (!holds(file.name)) return {Kind::kOutdated, file.name + " is missing"};
    if (digest_of_file(DigestKind::kSha256, folder / file.name) != file.sha256) {
      return {Kind::kOutdated, file.name + " was changed or damaged"};
    }
  }
  if (!was_made_by(recipe, folder)) return {Kind::kOutdated, "it was made by another recipe"};
  return {Kind::kWhole};
}

void seal_data_folder(const fs::path& folder, const Recipe& recipe) {
  write_text_file(folder / kLicencesFile, licence_text(recipe));
  write_text_file(folder / kRecipeFile, recipe.json);
  std::vector<FileChecksum> list;
  for (const std::string& name : names_in(folder)) {
    list.push_back({digest_of_file(DigestKind::kSha256, folder / name), name});
  }
  write_text_file(folder / kChecksumListName, format_checksum_list(list));
}

}  // namespace lockstep
