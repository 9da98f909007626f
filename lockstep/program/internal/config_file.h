#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/program/program_options.h"

namespace lockstep::inline internal {

/// One value of a file of options.
struct ConfigEntry {
  std::string name;   ///< with its sections: "ddp.bucket_cap_mb"
  std::string value;  ///< as on the command line
  ProgramOption::Kind kind = ProgramOption::Kind::kText;
  std::size_t line = 0;  ///< 0 in JSON
  std::string place;     ///< "train.toml:3", "train.json"
};

/// The values of a file, in its order: TOML 1.0 (.toml) or JSON (.json). Sections, {…} in JSON, may
/// be within sections. Errors: UsageError naming file and line for what is neither, for another
/// file name extension, and for values that are lists, dates or null; SystemError.
std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path);

/// The options' values as a TOML file.
std::string toml_text(const std::vector<ProgramOption>& options);

/// Whether `value` is an integer of over 63 bits, which stands in TOML as a text.
bool is_beyond_toml(const std::string& value);

}  // namespace lockstep::inline internal
