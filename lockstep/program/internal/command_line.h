#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/program/program_options.h"

namespace lockstep::inline internal {

/// What the command line of a program with options says.
struct CommandLine {
  bool is_help = false;
  std::string help;  ///< where it was asked for
  bool is_print_config = false;
  std::optional<std::string> config_file;
  /// Names and values, in the order of the options.
  std::vector<std::pair<std::string, std::string>> values;
};

/// "--ddp.bucket-cap-mb" for "ddp.bucket_cap_mb".
std::string flag_of(const std::string& name);

/// Whether it is one that every program has.
bool is_own_flag(const std::string& flag);

/// Reads flags, which may be written with underscores. `variable` is an example for --help.
/// Errors: UsageError for what is no flag of the program, with the nearest that is.
CommandLine read_command_line(const std::string& about, const std::vector<ProgramOption>& options,
                              const std::string& variable, int argc, const char* const* argv);

}  // namespace lockstep::inline internal
