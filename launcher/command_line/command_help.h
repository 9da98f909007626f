#pragma once

#include <string>
#include <vector>

#include "launcher/command_line/split_arguments.h"

namespace CLI {
class App;
}

namespace lockstep::inline internal {

/// A flag or an argument in a command's help.
struct HelpEntry {
  /// A flag's name without dashes, or an argument's name in capitals.
  std::string name;
  /// Short form of the flag; 0: none.
  char letter = 0;
  /// Placeholder of the flag's value, as in "DIR" or "0|1"; empty if it takes none.
  std::string value{};
  /// Description; may have several lines.
  std::string text{};
  bool is_argument = false;
};

/// Entries under a title. A command's first group may have no title.
struct HelpGroup {
  std::string title;
  std::vector<HelpEntry> entries{};
};

/// A command's help as data. `--help`, man pages, shell completion and the command-line reference
/// are generated from it. Titles in `description` and `notes` are lines that end in ':'; examples
/// and tables are indented by two spaces.
struct CommandHelp {
  /// "lockstep ps".
  std::string name;
  /// Text after the name: "[JOB] [options]".
  std::string usage{};
  std::string description{};
  std::vector<HelpGroup> groups{};
  std::string notes{};
  /// Subcommands, such as `lockstep snapshot show`.
  std::vector<CommandHelp> actions{};
};

/// Internal flag: each command prints describe() of its help if this is its only argument. The
/// build generates man pages and shell completion from that (scripts/render_commands.py).
inline constexpr const char* kDescribeCommand = "--describe-command";

/// The text of `--help`.
std::string help_text(const CommandHelp& help);

/// The flags of all groups, for split_arguments().
std::vector<FlagName> flag_names(const CommandHelp& help);

/// One line of JSON with the members of CommandHelp.
std::string describe(const CommandHelp& help);

/// The help of a command that CLI11 parses. Groups and options without a name are hidden.
CommandHelp help_of(const CLI::App& app);

}  // namespace lockstep::inline internal
