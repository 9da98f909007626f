#pragma once

#include <string>
#include <vector>

#include "launcher/command_line/split_arguments.h"

namespace CLI {
class App;
}

namespace lockstep::inline internal {

/// A flag or an argument in the help of a command.
struct HelpEntry {
  /// A flag's name without dashes, or an argument's name in capitals.
  std::string name;
  /// The flag's letter; 0: none.
  char letter = 0;
  /// Placeholder of the flag's value, as in "DIR" or "0|1"; empty if it takes none.
  std::string value{};
  /// May have several lines.
  std::string text{};
  bool is_argument = false;
};

/// Entries under a title. The first group of a command may have none.
struct HelpGroup {
  std::string title;
  std::vector<HelpEntry> entries{};
};

/// The help of a command as data: `--help`, man pages, shell completion and the reference of the
/// command line are made from it. Titles in `description` and `notes` are lines that end in ':';
/// examples and tables are indented by two spaces.
struct CommandHelp {
  /// "lockstep ps".
  std::string name;
  /// What follows the name: "[JOB] [options]".
  std::string usage{};
  std::string description{};
  std::vector<HelpGroup> groups{};
  std::string notes{};
  /// Actions, as in `lockstep snapshot show`.
  std::vector<CommandHelp> actions{};
};

/// The internal flag, given alone, at which each command prints describe() of its help. The build
/// makes man pages and shell completion from it (scripts/render_commands.py).
inline constexpr const char* kDescribeCommand = "--describe-command";

/// What `--help` prints.
std::string help_text(const CommandHelp& help);

/// The flags of all groups, as split_arguments() takes them.
std::vector<FlagName> flag_names(const CommandHelp& help);

/// A line of JSON with the members of CommandHelp.
std::string describe(const CommandHelp& help);

/// The help of a command whose parser is an App. Groups and options without a name are hidden.
CommandHelp help_of(const CLI::App& app);

}  // namespace lockstep::inline internal
