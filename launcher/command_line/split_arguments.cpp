#include "launcher/command_line/split_arguments.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

struct Given {
  // "--name" or "-n", as it was written.
  std::string flag;
  bool has_value = false;
  std::string value{};
};

// "--name", "--name=value", "-n", "-nvalue", "-n=value".
Given read_flag(const std::string& text) {
  const auto equals = text.find('=');
  if (!text.starts_with("--")) {
    return {text.substr(0, 2), text.size() > 2, text.substr(equals == 2 ? 3 : 2)};
  }
  if (equals == std::string::npos) return {text};
  return {text.substr(0, equals), true, text.substr(equals + 1)};
}

// "nproc-per-node" of "--nproc_per_node=2".
std::string name_in(const std::string& text) {
  std::string name = text.substr(0, text.find('='));
  name.erase(0, name.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

[[noreturn]] void refuse_unknown(const std::string& text, const std::vector<FlagName>& known,
                                 const std::string& help) {
  std::vector<std::string> candidates;
  for (const FlagName& flag : known) candidates.push_back(flag.name);
  const std::string suggestion = did_you_mean(name_in(text), candidates, "--");
  throw UsageError(concat("unknown flag ", text.substr(0, text.find('=')),
                          suggestion.empty() ? concat("; ", help, " lists all") : suggestion));
}

const FlagName& find_letter(const std::string& text, const std::vector<FlagName>& known) {
  const auto flag = std::find_if(known.begin(), known.end(),
                                 [&](const FlagName& name) { return name.letter == text[1]; });
  if (flag == known.end()) refuse_unknown(text, known, "--help");
  return *flag;
}

}  // namespace

const FlagName& find_flag(const std::string& text, const std::vector<FlagName>& known,
                          const std::string& help) {
  const std::string name = name_in(text);
  std::vector<const FlagName*> begun;
  for (const FlagName& flag : known) {
    if (flag.name == name) return flag;
    if (!flag.in_full && flag.name.starts_with(name)) begun.push_back(&flag);
  }
  if (begun.empty() || name.empty()) refuse_unknown(text, known, help);
  if (begun.size() == 1) return *begun.front();
  std::string names;
  for (const FlagName* flag : begun) names += concat(names.empty() ? "--" : ", --", flag->name);
  throw UsageError(concat(text.substr(0, text.find('=')), " may be any of ", names));
}

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
    const FlagName* flag =
        text.starts_with("--") ? &find_flag(text, known) : &find_letter(text, known);
    // Letters without a value may stand together; the last may have one.
    const bool letters = !text.starts_with("--") && text.find('=') != 2;
    while (letters && !flag->takes_value && given.has_value) {
      result.flags.push_back(concat("--", flag->name));
      given = read_flag(concat("-", given.value));
      flag = &find_letter(given.flag, known);
    }
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

std::pair<std::string, std::string> name_and_value(const std::string& flag) {
  const Given given = read_flag(flag);
  return {given.flag.substr(2), given.value};
}

}  // namespace lockstep::inline internal
