#include "lockstep/cli/split_arguments.h"

#include <algorithm>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/nearest_name.h"

namespace lockstep {
namespace {

struct Given {
  // "--name" or "-n", as it was written.
  std::string flag;
  bool has_value = false;
  std::string value{};
};

// "--name", "--name=value", "-n", "-nvalue".
Given read_flag(const std::string& text) {
  if (!text.starts_with("--")) return {text.substr(0, 2), text.size() > 2, text.substr(2)};
  const auto equals = text.find('=');
  if (equals == std::string::npos) return {text};
  return {text.substr(0, equals), true, text.substr(equals + 1)};
}

bool names(const std::string& given, const FlagName& flag) {
  if (!given.starts_with("--")) return given[1] == flag.letter;
  std::string name = given.substr(2);
  std::replace(name.begin(), name.end(), '_', '-');
  return name == flag.name;
}

[[noreturn]] void refuse(const std::string& text, const std::vector<FlagName>& known) {
  std::vector<std::string> candidates;
  for (const FlagName& flag : known) candidates.push_back(flag.name);
  const std::string given = text.substr(0, text.find('='));
  std::string name = given.substr(given.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string suggestion = did_you_mean(name, candidates, "--");
  throw UsageError(
      concat("unknown flag ", given, suggestion.empty() ? "; --help lists all" : suggestion));
}

}  // namespace

SplitArguments split_arguments(const std::vector<std::string>& arguments,
                               const std::vector<FlagName>& known) {
  SplitArguments result;
  auto next = arguments.begin();
  while (next != arguments.end()) {
    const std::string& text = *next;
    if (text.size() < 2 || text[0] != '-') break;
    ++next;
    if (text == "--") break;
    Given given = read_flag(text);
    const auto flag = std::find_if(known.begin(), known.end(),
                                   [&](const FlagName& name) { return names(given.flag, name); });
    if (flag == known.end()) refuse(text, known);
    if (flag->takes_value && !given.has_value && next != arguments.end()) given.value = *next++;
    if (flag->takes_value && given.value.empty()) {
      throw UsageError(concat("--", flag->name, " needs a value"));
    }
    if (!flag->takes_value && given.has_value) {
      throw UsageError(concat("--", flag->name, " takes no value, but has '", given.value, "'"));
    }
    result.flags.push_back(concat("--", flag->name, flag->takes_value ? "=" : "", given.value));
  }
  result.program.assign(next, arguments.end());
  return result;
}

}  // namespace lockstep
