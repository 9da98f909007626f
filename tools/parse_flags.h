#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "launcher/command_line/command_help.h"
#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

/// An option that takes a decimal integer: CLI11 itself reads 010 as octal. `value` holds the
/// default, and must outlive the parsing.
inline CLI::Option* add_integer(CLI::App& app, const std::string& flag, int& value, int least,
                                const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&value, flag, least](const std::string& text) { value = int_of(flag, text, least); },
          help)
      ->option_text("N");
}

/// "--nproc-per-node=2" for "--nproc=2". Errors: UsageError.
inline std::string with_full_name(const std::string& argument, const CLI::App& app,
                                  const std::string& help) {
  std::vector<FlagName> known;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back({.name = name});
  }
  const std::size_t value = std::min(argument.find('='), argument.size());
  return concat("--", find_flag(argument, known, help).name, argument.substr(value));
}

/// Parses the flags of a tool, by find_flag()'s rules for names. Subcommands are actions, of which
/// one is required. False where --help was given, which is printed. Errors: UsageError.
inline bool parse_flags(CLI::App& app, std::vector<std::string> arguments) {
  const std::string tool = app.get_name().substr(app.get_name().rfind(' ') + 1);
  app.set_help_flag("-h,--help", "show this text");
  std::string actions;
  for (CLI::App* const action : app.get_subcommands({})) {
    action->set_help_flag("-h,--help", "show this text");
    actions += concat(actions.empty() ? "" : ", ", action->get_name());
  }
  if (arguments == std::vector<std::string>{kDescribeCommand}) {
    std::fputs(describe(help_of(app)).c_str(), stdout);
    return false;
  }
  if (!actions.empty()) app.require_subcommand(1);
  if (!actions.empty() && !arguments.empty() && arguments.front() == "help") {
    arguments.front() = "--help";
  }
  const auto is_action = [&](const std::string& word) {
    return std::ranges::any_of(app.get_subcommands({}),
                               [&](const CLI::App* action) { return action->check_name(word); });
  };
  if (!actions.empty() && (arguments.empty() ||
                           !(arguments.front().starts_with("-") || is_action(arguments.front())))) {
    throw UsageError(
        concat(tool, ": ",
               arguments.empty() ? "no action" : concat("unknown action '", arguments.front(), "'"),
               "; it is one of ", actions));
  }
  const CLI::App* current = &app;
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.starts_with("--")) {
      argument = with_full_name(argument, *current, concat(app.get_name(), " --help"));
    } else if (current == &app && is_action(argument)) {
      current = app.get_subcommand(argument);
    }
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last one first.
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    CommandHelp help = help_of(app);
    for (const CommandHelp& action : help_of(app).actions) {
      if (action.name.ends_with(concat(" ", current->get_name()))) help = action;
    }
    std::fputs(help_text(help).c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(concat(tool, ": ", error.what(), "; see ", app.get_name(), " --help"));
  }
  return true;
}

}  // namespace lockstep::inline internal
