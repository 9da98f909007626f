#include "lockstep/program/internal/config_file.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 1
#include <toml++/toml.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

// Of options; more is another kind of file.
constexpr std::uint64_t kMaxBytes = 1 << 20;

std::string text_of(const std::filesystem::path& path) {
  const ReadableFile file(path);
  if (file.size_bytes() > kMaxBytes) {
    throw UsageError(concat("options of ", path.string(), ": it has ", file.size_bytes(),
                            " bytes, which no file of options has"));
  }
  return file.text();
}

[[noreturn]] void refuse_value(const std::string& place, const std::string& name,
                               const std::string& what) {
  throw UsageError(
      concat(place, ": ", name, " is ", what, "; an option is a text, a number, or true or false"));
}

class TomlEntries {
 public:
  explicit TomlEntries(std::string file) : file_(std::move(file)) {}

  std::vector<ConfigEntry> take(const toml::table& table) {
    add(table, "");
    // A table is sorted by name, messages are to name the first line that is wrong.
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<ConfigEntry> entries;
    for (auto& [line, entry] : lines_) entries.push_back(std::move(entry));
    return entries;
  }

 private:
  void add(const toml::table& table, const std::string& section) {
    for (const auto& [key, node] : table) {
      const std::string name = section + std::string(key.str());
      if (const auto* const inner = node.as_table()) {
        add(*inner, name + ".");
        continue;
      }
      const auto line = node.source().begin.line;
      const std::string place = concat(file_, ":", line);
      lines_.emplace_back(line,
                          ConfigEntry{name, value_text(node, place, name), place, kind_of(node)});
    }
  }

  static ProgramOption::Kind kind_of(const toml::node& node) {
    if (node.is_string()) return ProgramOption::Kind::kText;
    return node.is_boolean() ? ProgramOption::Kind::kFlag : ProgramOption::Kind::kNumber;
  }

  static std::string value_text(const toml::node& node, const std::string& place,
                                const std::string& name) {
    if (const auto* const text = node.as_string()) return text->get();
    if (const auto* const flag = node.as_boolean()) return flag->get() ? "true" : "false";
    if (const auto* const number = node.as_integer()) return std::to_string(number->get());
    if (const auto* const number = node.as_floating_point()) {
      return nlohmann::json(number->get()).dump();
    }
    refuse_value(place, name, node.is_array() ? "a list" : "a date");
  }

  std::string file_;
  std::vector<std::pair<toml::source_index, ConfigEntry>> lines_;
};

std::vector<ConfigEntry> toml_entries(const std::string& text, const std::string& file) {
  try {
    const toml::table table = toml::parse(text);
    return TomlEntries(file).take(table);
  } catch (const toml::parse_error& error) {
    throw UsageError(concat(file, ":", error.source().begin.line,
                            ": not as TOML has it: ", error.description()));
  }
}

void add_json(const nlohmann::ordered_json& object, const std::string& section,
              const std::string& file, std::vector<ConfigEntry>& entries) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = section + key;
    if (value.is_object()) {
      add_json(value, name + ".", file, entries);
      continue;
    }
    if (value.is_array()) refuse_value(file, name, "a list");
    if (value.is_null()) refuse_value(file, name, "null");
    if (value.is_string()) {
      entries.push_back({name, value.get<std::string>(), file, ProgramOption::Kind::kText});
    } else {
      const bool is_flag = value.is_boolean();
      entries.push_back({name, value.dump(), file,
                         is_flag ? ProgramOption::Kind::kFlag : ProgramOption::Kind::kNumber});
    }
  }
}

std::vector<ConfigEntry> json_entries(const std::string& text, const std::string& file) {
  nlohmann::ordered_json object;
  try {
    object = nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const auto read =
        text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(error.byte, text.size()));
    throw UsageError(
        concat(file, ":", 1 + std::count(text.begin(), read, '\n'), ": not as JSON has it"));
  }
  if (!object.is_object()) throw UsageError(concat(file, ": not an object, {\"name\": value, …}"));
  std::vector<ConfigEntry> entries;
  add_json(object, "", file, entries);
  return entries;
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".toml") return toml_entries(text_of(path), path.string());
  if (extension == ".json") return json_entries(text_of(path), path.string());
  throw UsageError(concat("options of ", path.string(),
                          ": its name says not what it holds; call it .toml or .json"));
}

}  // namespace lockstep::inline internal
