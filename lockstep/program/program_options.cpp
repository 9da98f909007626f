#include "lockstep/program/program_options.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/program/internal/config_file.h"

namespace lockstep {
namespace {

// Options that every program has.
constexpr const char* kConfig = "config";
constexpr const char* kPrintConfig = "print_config";

const char* name_of(ProgramOption::Kind kind) {
  switch (kind) {
    case ProgramOption::Kind::kText:
      return "a text";
    case ProgramOption::Kind::kNumber:
      return "a number";
    case ProgramOption::Kind::kFlag:
      return "true or false";
    case ProgramOption::Kind::kFlagOrNumber:
      return "true, false or a number";
  }
  return "?";
}

bool takes(const ProgramOption& option, const ConfigEntry& entry) {
  using Kind = ProgramOption::Kind;
  if (entry.kind == option.kind) return true;
  if (option.kind == Kind::kFlagOrNumber) return entry.kind != Kind::kText;
  return option.kind == Kind::kNumber && is_beyond_toml(entry.value);
}

// "--ddp.bucket-cap-mb" for "ddp.bucket_cap_mb".
std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (std::string argument : std::vector<std::string>(argv + std::min(argc, 1), argv + argc)) {
    const std::size_t end = std::min(argument.find('='), argument.size());
    if (argument.starts_with("--")) {
      std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    }
    // CLI11 would take what follows --name= for its value.
    const bool is_empty_value = argument.starts_with("--") && end + 1 == argument.size();
    if (is_empty_value) argument.resize(end);
    arguments.push_back(std::move(argument));
    if (is_empty_value) arguments.emplace_back();
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  return arguments;
}

const CLI::Option* add_flag(CLI::App& app, const ProgramOption& option) {
  const std::string flag = flag_of(option.name);
  const bool is_flag = option.kind == ProgramOption::Kind::kFlag;
  CLI::Option* const added = is_flag ? app.add_flag(flag) : app.add_option(flag);
  const bool is_number = option.kind == ProgramOption::Kind::kNumber;
  if (!is_flag) added->type_name(is_number ? "NUM" : "TEXT");
  return added->description(option.help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group(option.group)
      ->default_str(option.get());
}

[[noreturn]] void refuse(const std::string& argument, const CLI::App& app) {
  if (!argument.starts_with('-')) {
    throw UsageError(concat("unexpected argument ", argument, "; see --help"));
  }
  std::vector<std::string> known;
  for (const CLI::Option* const option : app.get_options()) known.push_back(option->get_name());
  const std::string flag = argument.substr(0, argument.find('='));
  throw UsageError(concat("unknown flag ", flag, did_you_mean(flag, known), "; see --help"));
}

// Errors: UsageError, `refusal` and the nearest name, where `name` is not among `known`.
std::size_t index_of(const std::string& name, const std::vector<std::string>& known,
                     const std::string& refusal) {
  const auto found = std::ranges::find(known, name);
  if (found == known.end()) throw UsageError(refusal + did_you_mean(name, known));
  return static_cast<std::size_t>(found - known.begin());
}

void apply(const ProgramOption& option, const std::string& value, const std::string& place) {
  const std::string wrong = option.set(value);
  if (!wrong.empty()) throw UsageError(concat(place, " ", wrong, ", not '", value, "'"));
}

}  // namespace

ProgramOptions::ProgramOptions(std::string about, ProgramOptionsSettings settings)
    : about_(std::move(about)), prefix_(std::move(settings.environment_prefix)) {}

void ProgramOptions::add(ProgramOption option) {
  std::vector<std::string> taken = names();
  taken.insert(taken.end(), {kConfig, kPrintConfig, "help"});
  const auto is_taken = [&](const std::string& one) {
    return flag_of(one) == flag_of(option.name);
  };
  if (std::ranges::any_of(taken, is_taken)) {
    throw UsageError(concat("ProgramOptions: there is an option ", option.name, " already"));
  }
  if (option.group.empty()) option.group = group_;
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
       .get = [&value] { return value; }});
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
       .kind = ProgramOption::Kind::kFlag});
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

void ProgramOptions::apply_file(const std::string& file) {
  for (const ConfigEntry& entry : read_config_file(file)) {
    const ProgramOption& option = options_[index_of(
        entry.name, names(), concat(entry.place, ": no option is called ", entry.name))];
    const std::string place = concat(entry.place, ": ", entry.name);
    if (!takes(option, entry)) {
      throw UsageError(
          concat(place, " must be ", name_of(option.kind), ", not ", name_of(entry.kind)));
    }
    apply(option, entry.value, place);
  }
}

void ProgramOptions::apply_environment() {
  std::vector<std::string> variables;
  for (const ProgramOption& option : options_) variables.push_back(variable_of(option.name));
  variables.push_back(variable_of(kConfig));
  for (const std::string& line : env::everything()) {
    if (!line.starts_with(prefix_)) continue;
    const std::string variable = line.substr(0, line.find('='));
    const std::string place = "environment: " + variable;
    const std::size_t index =
        index_of(variable, variables, concat(place, " is no option of this program"));
    if (index == options_.size()) continue;  // CLI11 read it
    apply(options_[index], line.substr(variable.size() + 1), place);
  }
}

bool ProgramOptions::parse(int argc, const char* const* argv) {
  const bool is_first = launched_rank().value_or(0) == 0;
  CLI::App app(about_, argc > 0 ? argv[0] : "");
  app.allow_extras();
  app.footer(concat(
      "A file has the option names with underscores, in TOML: batch_size = 64, or JSON:\n"
      "{\"batch_size\": 64}. The part before a dot is a section: [ddp]. A flag overrides its\n"
      "environment variable (",
      variable_of(options_.empty() ? "" : options_.front().name), "), which overrides the file."));
  std::string file;
  app.add_option(flag_of(kConfig), file, "file of options: .toml or .json")
      ->type_name("FILE")
      ->envname(variable_of(kConfig));
  bool is_print_config = false;
  app.add_flag(flag_of(kPrintConfig), is_print_config, "print all values as such a file, and end");
  std::vector<const CLI::Option*> flags;
  for (const ProgramOption& option : options_) flags.push_back(add_flag(app, option));
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::Success&) {
    if (is_first) std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(concat(error.what(), "; see --help"));
  }
  if (app.remaining_size() > 0) refuse(app.remaining().front(), app);
  if (!file.empty()) apply_file(file);
  apply_environment();
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]->count() == 0) continue;
    apply(options_[i], flags[i]->results().back(), flag_of(options_[i].name));
  }
  if (is_print_config && is_first) std::cout << toml();
  return !is_print_config;
}

std::string ProgramOptions::toml() const {
  return toml_text(options_);
}

}  // namespace lockstep
