#include "launcher/command_line/command_help.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// "-n, --lines=N", or the name of an argument.
std::string heading_of(const HelpEntry& entry) {
  if (entry.is_argument) return entry.name;
  const std::string letter =
      entry.letter == 0 ? "" : concat("-", std::string(1, entry.letter), ", ");
  // A value that may be left out: "[FILE]".
  const std::string value = entry.value.starts_with("[") ? concat("[=", entry.value.substr(1))
                            : entry.value.empty()        ? ""
                                                         : concat("=", entry.value);
  return concat(letter, "--", entry.name, value);
}

// Lines after the first begin below the first.
std::string indented(const std::string& text, std::size_t column) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result += std::string(column, ' ');
  }
  return result;
}

// A text of a table as a sentence.
std::string sentence(std::string text) {
  if (text.empty()) return text;
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text.ends_with('.') ? text : text + ".";
}

struct HelpRow {
  std::string heading;
  std::string text;
};

// Rows with their texts in one column, which a heading longer than that moves to the next line.
std::string table(const std::vector<HelpRow>& rows, std::size_t column) {
  std::string result;
  for (const HelpRow& row : rows) {
    std::string line = concat("  ", row.heading);
    if (line.size() + 2 > column) {
      result += line + "\n";
      line.clear();
    }
    line.resize(column, ' ');
    result += concat(line, indented(row.text, column), "\n");
  }
  return result;
}

nlohmann::json json_of(const CommandHelp& help) {
  nlohmann::json groups = nlohmann::json::array();
  for (const HelpGroup& group : help.groups) {
    nlohmann::json entries = nlohmann::json::array();
    for (const HelpEntry& entry : group.entries) {
      entries.push_back({{"name", entry.name},
                         {"letter", entry.letter == 0 ? "" : std::string(1, entry.letter)},
                         {"value", entry.value},
                         {"text", entry.text},
                         {"is_argument", entry.is_argument}});
    }
    groups.push_back({{"title", group.title}, {"entries", entries}});
  }
  nlohmann::json actions = nlohmann::json::array();
  for (const CommandHelp& action : help.actions) actions.push_back(json_of(action));
  return {{"name", help.name}, {"usage", help.usage}, {"description", help.description},
          {"groups", groups},  {"notes", help.notes}, {"actions", actions}};
}

}  // namespace

std::string help_text(const CommandHelp& help) {
  std::vector<std::pair<std::string, std::vector<HelpRow>>> tables;
  for (const HelpGroup& group : help.groups) {
    std::vector<HelpRow> rows;
    for (const HelpEntry& entry : group.entries) rows.push_back({heading_of(entry), entry.text});
    tables.emplace_back(group.title, rows);
  }
  if (!help.actions.empty()) {
    std::vector<HelpRow> rows;
    for (const CommandHelp& action : help.actions) {
      rows.push_back({action.name.substr(action.name.rfind(' ') + 1), action.description});
    }
    tables.emplace_back("Subcommands", rows);
  }
  std::size_t widest = 0;
  for (const auto& [title, rows] : tables) {
    for (const HelpRow& row : rows) widest = std::max(widest, row.heading.size());
  }
  constexpr std::size_t kMargins = 4;
  constexpr std::size_t kLastColumn = 35;
  const std::size_t column = std::min(widest + kMargins, kLastColumn);

  std::string text =
      concat("Usage: ", help.name, " ", help.usage, "\n\n", sentence(help.description), "\n");
  for (const auto& [title, rows] : tables) {
    text += concat("\n", title.empty() ? "" : concat(title, ":\n"), table(rows, column));
  }
  if (!help.notes.empty()) text += concat("\n", help.notes, "\n");
  return text;
}

std::vector<FlagName> flag_names(const CommandHelp& help) {
  std::vector<FlagName> names;
  for (const HelpGroup& group : help.groups) {
    for (const HelpEntry& entry : group.entries) {
      if (entry.is_argument) continue;
      names.push_back(
          {.name = entry.name, .letter = entry.letter, .takes_value = !entry.value.empty()});
    }
  }
  return names;
}

std::string describe(const CommandHelp& help) {
  return json_of(help).dump() + "\n";
}

}  // namespace lockstep::inline internal
