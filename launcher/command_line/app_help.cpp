#include <CLI/CLI.hpp>

#include "launcher/command_line/command_help.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

HelpEntry entry_of(const CLI::Option& option) {
  HelpEntry entry{.name = option.get_name(true, false), .text = option.get_description()};
  entry.is_argument = option.get_positional();
  if (entry.is_argument) return entry;
  entry.name = option.get_lnames().front();
  if (!option.get_snames().empty()) entry.letter = option.get_snames().front().front();
  if (option.get_items_expected_max() != 0) {
    const std::string& text = option.get_option_text();
    entry.value = text.empty() ? option.get_type_name() : text;
  }
  return entry;
}

// "[options] MODEL", or "[options] SUBCOMMAND".
std::string usage_of(const CLI::App& app) {
  std::string usage = "[options]";
  if (!app.get_subcommands({}).empty()) return usage + " SUBCOMMAND";
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool is_list = option->get_items_expected_max() > 1;
    usage += concat(" ", option->get_name(true, false), is_list ? "..." : "");
  }
  return usage;
}

}  // namespace

CommandHelp help_of(const CLI::App& app) {
  CommandHelp help{
      .name = app.get_name(), .usage = usage_of(app), .description = app.get_description()};
  for (const std::string& title : app.get_groups()) {
    HelpGroup group{.title = title == "Options" ? "" : title};
    for (const CLI::Option* option : app.get_options()) {
      if (!title.empty() && option->get_group() == title)
        group.entries.push_back(entry_of(*option));
    }
    // Arguments come first, as in the usage.
    std::ranges::stable_partition(group.entries, &HelpEntry::is_argument);
    if (!group.entries.empty()) help.groups.push_back(group);
  }
  help.notes = app.get_footer();
  for (const CLI::App* action : app.get_subcommands({})) {
    CommandHelp action_help = help_of(*action);
    action_help.name = concat(app.get_name(), " ", action->get_name());
    help.actions.push_back(action_help);
  }
  return help;
}

}  // namespace lockstep::inline internal
