#include "tools/new/new_project.h"

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

void check_name(const std::string& name) {
  const auto may_begin = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  const auto may_follow = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  };
  // Names of CMake's own targets.
  const std::vector<std::string> taken = {"all", "clean", "help", "install", "test"};
  const bool is_good = !name.empty() && may_begin(name.front()) &&
                       std::ranges::all_of(name, may_follow) &&
                       std::ranges::find(taken, name) == taken.end();
  if (is_good) return;
  throw UsageError(
      concat("new: '", name, "' cannot name a program; take letters, digits, _ and -"));
}

std::string replaced(std::string text, const std::string& mark, const std::string& value) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size()) {
    text.replace(at, mark.size(), value);
  }
  return text;
}

}  // namespace

std::vector<ProjectFile> project_files(const ProjectFacts& facts) {
  check_name(facts.name);
  std::vector<ProjectFile> files;
  for (const ProjectFile& file : project_templates()) {
    std::string text = replaced(file.text, "@PROJECT@", facts.name);
    text = replaced(std::move(text), "@VERSION@", facts.version);
    text = replaced(std::move(text), "@PREFIX_PATH@", facts.prefix_path);
    files.push_back({file.name == "gitignore" ? ".gitignore" : file.name, std::move(text)});
  }
  return files;
}

}  // namespace lockstep::inline internal
