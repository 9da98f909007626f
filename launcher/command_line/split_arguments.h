#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

/// A flag of a command, "--redirects" or "-r".
struct FlagName {
  /// Without dashes.
  std::string name;
  /// 0: none.
  char letter = 0;
  bool takes_value = false;
  /// The flag has no prefixes: a prefix does not match it, nor does it make another flag's prefix
  /// ambiguous.
  bool in_full = false;
};

/// A command line, split into the command's flags and the program to run.
struct SplitArguments {
  /// The command's flags, each as "--name" or "--name=value", with '-' for '_' in the name.
  std::vector<std::string> flags;
  /// The program and its arguments, unchanged. Empty: none is given.
  std::vector<std::string> program;
};

/// Finds the flag that "--name" or "--name=value" names, in full or by a unique prefix. '_' and '-'
/// are equal.
/// Errors: UsageError if there is none or the prefix is ambiguous, with the nearest name, or with
/// `help`, the command that lists them.
const FlagName& find_flag(const std::string& text, const std::vector<FlagName>& known,
                          const std::string& help = "--help");

/// Splits a command line: the program is the first word that is neither a flag nor a flag's value;
/// "--" before it ends the flags. Like torchrun it accepts a unique prefix of a flag, "-r=3" for
/// "-r3", and "-mr3" for "-m -r3".
/// Errors: UsageError for a flag that is unknown, ambiguous or lacks its value, with the nearest
/// name.
SplitArguments split_arguments(const std::vector<std::string>& arguments,
                               const std::vector<FlagName>& known);

/// Splits an element of SplitArguments::flags: the name without dashes, the value or "".
std::pair<std::string, std::string> name_and_value(const std::string& flag);

}  // namespace lockstep::inline internal
