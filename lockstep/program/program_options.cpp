#include "lockstep/program/program_options.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iostream>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/nearest_name.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/program/internal/command_line.h"
#include "lockstep/program/internal/config_file.h"

namespace lockstep {
namespace {

constexpr const char* kConfigVariable = "CONFIG";

const char* name_of(ProgramOption::Kind kind) {
  switch (kind) {
    case ProgramOption::Kind::kText:
      return "a text";
    case ProgramOption::Kind::kNumber:
      return "a number";
    case ProgramOption::Kind::kFlag:
      return "true or false";
  }
  return "?";
}

// TOML's integers have 63 bits and a sign: a larger one stands there as a text.
bool is_beyond_toml(const std::string& value) {
  const bool is_integer = value.find_first_not_of("-0123456789") == std::string::npos;
  return is_integer && parse_number<double>(value) && !parse_number<std::int64_t>(value);
}

}  // namespace

ProgramOptions::ProgramOptions(std::string about, ProgramOptionsSettings settings)
    : about_(std::move(about)), prefix_(std::move(settings.environment_prefix)) {}

void ProgramOptions::add(ProgramOption option) {
  if (find(option.name) || is_own_flag(flag_of(option.name))) {
    throw UsageError(concat("ProgramOptions: there is an option ", option.name, " already"));
  }
  options_.push_back(std::move(option));
}

void ProgramOptions::add(std::string name, std::string& value, std::string help) {
  add({.name = std::move(name),
       .help = std::move(help),
       .set =
           [&value](const std::string& text) {
             value = text;
             return std::string();
           },
       .get = [&value] { return value; },
       .group = group_});
}

void ProgramOptions::add(std::string name, bool& value, std::string help) {
  add({.name = std::move(name),
       .help = std::move(help),
       .set =
           [&value](const std::string& text) {
             if (text != "true" && text != "false") return std::string("must be true or false");
             value = text == "true";
             return std::string();
           },
       .get = [&value] { return std::string(value ? "true" : "false"); },
       .kind = ProgramOption::Kind::kFlag,
       .group = group_});
}

template <class Number>
bool ProgramOptions::set_number(const std::string& text, Number& value) {
  const auto number = parse_number<Number>(text);
  if (number) value = *number;
  return number.has_value();
}
template bool ProgramOptions::set_number(const std::string&, char&);
template bool ProgramOptions::set_number(const std::string&, signed char&);
template bool ProgramOptions::set_number(const std::string&, unsigned char&);
template bool ProgramOptions::set_number(const std::string&, short&);
template bool ProgramOptions::set_number(const std::string&, unsigned short&);
template bool ProgramOptions::set_number(const std::string&, int&);
template bool ProgramOptions::set_number(const std::string&, unsigned&);
template bool ProgramOptions::set_number(const std::string&, long&);
template bool ProgramOptions::set_number(const std::string&, unsigned long&);
template bool ProgramOptions::set_number(const std::string&, long long&);
template bool ProgramOptions::set_number(const std::string&, unsigned long long&);
template bool ProgramOptions::set_number(const std::string&, float&);
template bool ProgramOptions::set_number(const std::string&, double&);
template bool ProgramOptions::set_number(const std::string&, long double&);

ProgramOption* ProgramOptions::find(const std::string& name) {
  const auto found = std::find_if(options_.begin(), options_.end(),
                                  [&](const ProgramOption& one) { return one.name == name; });
  return found == options_.end() ? nullptr : &*found;
}

std::vector<std::string> ProgramOptions::names() const {
  std::vector<std::string> names;
  for (const ProgramOption& option : options_) names.push_back(option.name);
  return names;
}

std::string ProgramOptions::variable_of(const std::string& name) const {
  std::string variable = prefix_;
  for (const char letter : name) {
    if (letter == '.') variable += '_';
    variable += letter == '.' || letter == '-'
                    ? '_'
                    : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return variable;
}

void ProgramOptions::apply(const std::string& name, const std::string& value,
                           const std::string& place) {
  const std::string wrong = find(name)->set(value);
  if (!wrong.empty()) throw UsageError(concat(place, " ", wrong, ", not '", value, "'"));
}

void ProgramOptions::apply_file(const std::optional<std::string>& of_command_line) {
  std::string file = of_command_line.value_or("");
  const std::string variable = prefix_ + kConfigVariable + "=";
  for (const std::string& line : env::everything()) {
    if (!of_command_line && line.starts_with(variable)) file = line.substr(variable.size());
  }
  if (file.empty()) return;
  for (const ConfigEntry& entry : read_config_file(file)) {
    if (!find(entry.name)) {
      throw UsageError(concat(entry.place, ": no option is called ", entry.name,
                              did_you_mean(entry.name, names())));
    }
    const std::string place = concat(entry.place, ": ", entry.name);
    const ProgramOption::Kind kind = find(entry.name)->kind;
    const bool is_large = kind == ProgramOption::Kind::kNumber && is_beyond_toml(entry.value);
    if (entry.kind != kind && !is_large) {
      throw UsageError(concat(place, " must be ", name_of(kind), ", not ", name_of(entry.kind)));
    }
    apply(entry.name, entry.value, place);
  }
}

void ProgramOptions::apply_environment() {
  std::vector<std::string> variables = {prefix_ + kConfigVariable};
  for (const ProgramOption& option : options_) variables.push_back(variable_of(option.name));
  for (const std::string& line : env::everything()) {
    if (!line.starts_with(prefix_)) continue;
    const std::string variable = line.substr(0, line.find('='));
    const auto known = std::find(variables.begin(), variables.end(), variable);
    if (known == variables.end()) {
      throw UsageError(concat("environment: ", variable, " is no option of this program",
                              did_you_mean(variable, variables)));
    }
    if (known == variables.begin()) continue;  // read before
    const auto index = static_cast<std::size_t>(known - variables.begin()) - 1;
    apply(options_[index].name, line.substr(variable.size() + 1), "environment: " + variable);
  }
}

bool ProgramOptions::parse(int argc, const char* const* argv) {
  const bool is_first = launched_rank().value_or(0) == 0;
  const std::string variable = options_.empty() ? prefix_ : variable_of(options_.front().name);
  const CommandLine line = read_command_line(about_, options_, variable, argc, argv);
  if (line.is_help) {
    if (is_first) std::cout << line.help;
    return false;
  }
  apply_file(line.config_file);
  apply_environment();
  for (const auto& [name, value] : line.values) apply(name, value, flag_of(name));
  if (line.is_print_config && is_first) std::cout << toml();
  return !line.is_print_config;
}

std::string ProgramOptions::toml() const {
  // Values without a section come first: behind a section they would be of it.
  std::vector<const ProgramOption*> sorted;
  for (const ProgramOption& option : options_) sorted.push_back(&option);
  const auto section_of = [](const ProgramOption& option) {
    const std::size_t dot = option.name.rfind('.');
    return dot == std::string::npos ? std::string() : option.name.substr(0, dot);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto* a, const auto* b) { return section_of(*a) < section_of(*b); });
  std::string text;
  std::string section;
  for (const ProgramOption* const option : sorted) {
    if (section_of(*option) != section) {
      section = section_of(*option);
      text += concat("\n[", section, "]\n");
    }
    const std::string name =
        section.empty() ? option->name : option->name.substr(section.size() + 1);
    const std::string value = option->get();
    const bool is_quoted = option->kind == ProgramOption::Kind::kText || is_beyond_toml(value);
    text += concat(name, " = ", is_quoted ? nlohmann::json(value).dump() : value, "\n");
  }
  return text;
}

}  // namespace lockstep
