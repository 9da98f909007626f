#include "lockstep/program/internal/command_line.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/nearest_name.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kConfigFlag = "--config";
constexpr const char* kPrintFlag = "--print-config";

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

[[noreturn]] void refuse(const std::string& argument, const std::vector<ProgramOption>& options) {
  if (!argument.starts_with('-')) {
    throw UsageError(concat("unexpected argument ", argument, "; see --help"));
  }
  std::vector<std::string> known = {kConfigFlag, kPrintFlag};
  for (const ProgramOption& option : options) known.push_back(flag_of(option.name));
  const std::string flag = argument.substr(0, argument.find('='));
  throw UsageError(concat("unknown flag ", flag, did_you_mean(flag, known), "; see --help"));
}

CLI::Option* add_flag(CLI::App& app, const ProgramOption& option) {
  const std::string flag = flag_of(option.name);
  const bool is_flag = option.kind == ProgramOption::Kind::kFlag;
  CLI::Option* const added = is_flag ? app.add_flag(flag) : app.add_option(flag);
  if (!is_flag) added->type_name(option.kind == ProgramOption::Kind::kNumber ? "NUM" : "TEXT");
  return added->description(option.help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group(option.group)
      ->default_str(option.get());
}

}  // namespace

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

bool is_own_flag(const std::string& flag) {
  return flag == kConfigFlag || flag == kPrintFlag || flag == "--help";
}

CommandLine read_command_line(const std::string& about, const std::vector<ProgramOption>& options,
                              const std::string& variable, int argc, const char* const* argv) {
  CLI::App app(about, argc > 0 ? argv[0] : "");
  app.allow_extras();
  app.footer(concat(
      "A file of options has their names with underscores, in TOML: batch_size = 64, or JSON:\n"
      "{\"batch_size\": 64}; before a dot is the section, [ddp]. A flag counts more than a\n"
      "variable of the environment (",
      variable, "), that more than the file."));
  CommandLine line;
  std::string file;
  auto* const config = app.add_option(kConfigFlag, file, "file of options: .toml or .json");
  config->type_name("FILE");
  app.add_flag(kPrintFlag, line.is_print_config, "print all values as such a file, and end");
  std::vector<CLI::Option*> flags;
  for (const ProgramOption& option : options) flags.push_back(add_flag(app, option));
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::Success&) {
    line.is_help = true;
    line.help = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    throw UsageError(concat(error.what(), "; see --help"));
  }
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) refuse(extras.front(), options);
  if (config->count() > 0) line.config_file = file;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]->count() == 0) continue;
    line.values.emplace_back(options[i].name, flags[i]->results().back());
  }
  return line;
}

}  // namespace lockstep::inline internal
