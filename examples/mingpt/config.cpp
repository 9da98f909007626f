#include "examples/mingpt/config.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "examples/mingpt/config_keys.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace mingpt {
namespace {

using lockstep::concat;
using lockstep::UsageError;
using nlohmann::json;

// max_epochs is trainer_config.max_epochs without its section; else a slip of the keyboard.
std::string suggestion(const std::string& name) {
  std::vector<std::string> names;
  std::vector<std::string> sections;
  for (const ConfigKey& key : config_keys()) {
    if (key.name.ends_with("." + name)) return concat("; did you mean ", key.name, "?");
    names.push_back(key.name);
    sections.push_back(key.name.substr(0, key.name.find('.')));
  }
  const std::string section = name.substr(0, name.find('.'));
  const bool known = std::find(sections.begin(), sections.end(), section) != sections.end();
  return known ? lockstep::did_you_mean(name, names) : lockstep::did_you_mean(section, sections);
}

void set_value(Config& config, const std::string& name, const json& value,
               const std::string& source) {
  const auto& keys = config_keys();
  const auto key = std::find_if(keys.begin(), keys.end(),
                                [&](const ConfigKey& each) { return each.name == name; });
  if (key == keys.end()) {
    throw UsageError(concat(source, ": no key is called ", name, suggestion(name)));
  }
  const std::string wrong = key->set(config, value);
  if (!wrong.empty()) {
    throw UsageError(concat(source, ": ", name, " ", wrong, ", not ",
                            value.dump(-1, ' ', false, json::error_handler_t::replace)));
  }
}

}  // namespace

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBFloat16:
      return "bf16";
    case Precision::kFloat16:
      return "fp16";
  }
  return "?";
}

void apply_json(Config& config, const std::string& text, const std::string& source) {
  json sections;
  try {
    sections = json::parse(text);
  } catch (const json::parse_error& error) {
    throw UsageError(concat(source, ": byte ", error.byte, " is not as JSON has it"));
  }
  if (!sections.is_object()) {
    throw UsageError(concat(source, ": not an object of sections, {\"trainer_config\": {…}, …}"));
  }
  for (const auto& [section, values] : sections.items()) {
    if (!values.is_object()) {
      throw UsageError(concat(source, ": ", section, " is no section, {…}", suggestion(section)));
    }
    for (const auto& [name, value] : values.items()) {
      set_value(config, concat(section, ".", name), value, source);
    }
  }
}

void apply_override(Config& config, const std::string& assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string::npos) {
    throw UsageError(concat(assignment, ": not an assignment; write trainer_config.max_epochs=3"));
  }
  const std::string text = assignment.substr(equals + 1);
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) value = text;
  set_value(config, assignment.substr(0, equals), value, assignment);
}

std::string describe(const Config& config) {
  std::string lines;
  for (const ConfigKey& key : config_keys()) {
    if (key.get) lines += concat(key.name, "=", key.get(config).dump(), "\n");
  }
  return lines;
}

}  // namespace mingpt
