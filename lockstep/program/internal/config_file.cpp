#include "lockstep/program/internal/config_file.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

using Json = nlohmann::ordered_json;

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

class Entries {
 public:
  explicit Entries(std::string file) : file_(std::move(file)) {}

  void add(const toml::table& table, const std::string& section = "") {
    for (const auto& [key, node] : table) {
      const std::string name = section + std::string(key.str());
      const std::size_t line = node.source().begin.line;
      node.visit([&, &node = node](const auto& value) {
        using Value = decltype(value);
        if constexpr (toml::is_table<Value>) {
          add(value, name + ".");
        } else if constexpr (toml::is_string<Value> || toml::is_number<Value> ||
                             toml::is_boolean<Value>) {
          add_value(name, Json(value.get()), line);
        } else {
          refuse(name, node.is_array() ? "a list" : "a date", line);
        }
      });
    }
  }

  void add(const Json& object, const std::string& section = "") {
    for (const auto& [key, value] : object.items()) {
      if (value.is_object()) {
        add(value, section + key + ".");
      } else if (value.is_array() || value.is_null()) {
        refuse(section + key, value.is_null() ? "null" : "a list");
      } else {
        add_value(section + key, value);
      }
    }
  }

  std::vector<ConfigEntry> take() {
    // A table of TOML is sorted by name, messages are to name the first line that is wrong.
    std::ranges::stable_sort(entries_, {}, &ConfigEntry::line);
    return std::move(entries_);
  }

 private:
  std::string place(std::size_t line) const { return line == 0 ? file_ : concat(file_, ":", line); }

  void add_value(const std::string& name, const Json& value, std::size_t line = 0) {
    using Kind = ProgramOption::Kind;
    entries_.push_back({name, value.is_string() ? value.get<std::string>() : value.dump(),
                        value.is_string()    ? Kind::kText
                        : value.is_boolean() ? Kind::kFlag
                                             : Kind::kNumber,
                        line, place(line)});
  }

  [[noreturn]] void refuse(const std::string& name, const char* what, std::size_t line = 0) const {
    throw UsageError(concat(place(line), ": ", name, " is ", what,
                            "; an option is a text, a number, or true or false"));
  }

  std::string file_;
  std::vector<ConfigEntry> entries_;
};

toml::table parse_toml(const std::string& text, const std::string& file) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError(
        concat(file, ":", error.source().begin.line, ": invalid TOML: ", error.description()));
  }
}

Json parse_json(const std::string& text, const std::string& file) {
  try {
    Json object = Json::parse(text);
    if (object.is_object()) return object;
  } catch (const Json::parse_error& error) {
    const std::string read = text.substr(0, error.byte);
    throw UsageError(concat(file, ":", 1 + std::ranges::count(read, '\n'), ": invalid JSON"));
  }
  throw UsageError(concat(file, ": not a JSON object, {\"name\": value, …}"));
}

}  // namespace

std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  Entries entries(path.string());
  if (extension == ".toml") {
    entries.add(parse_toml(text_of(path), path.string()));
  } else if (extension == ".json") {
    entries.add(parse_json(text_of(path), path.string()));
  } else {
    throw UsageError(
        concat("options of ", path.string(), ": unknown format; name the file .toml or .json"));
  }
  return entries.take();
}

std::string toml_text(const std::vector<ProgramOption>& options) {
  // Values without a section come first: behind a section they would be of it.
  std::map<std::string, std::string> sections;
  for (const ProgramOption& option : options) {
    const std::size_t dot = option.name.rfind('.');
    const bool is_in_section = dot != std::string::npos;
    const std::string value = option.get();
    const bool is_quoted = option.kind == ProgramOption::Kind::kText || is_beyond_toml(value);
    sections[is_in_section ? option.name.substr(0, dot) : ""] +=
        concat(is_in_section ? option.name.substr(dot + 1) : option.name, " = ",
               is_quoted ? Json(value).dump() : value, "\n");
  }
  std::string text;
  for (const auto& [section, lines] : sections) {
    text += section.empty() ? lines : concat("\n[", section, "]\n", lines);
  }
  return text;
}

bool is_beyond_toml(const std::string& value) {
  const bool is_integer = value.find_first_not_of("-0123456789") == std::string::npos;
  return is_integer && parse_number<double>(value) && !parse_number<std::int64_t>(value);
}

}  // namespace lockstep::inline internal
