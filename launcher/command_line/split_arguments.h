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
  /// A prefix does not stand for it, nor makes that of another ambiguous.
  bool in_full = false;
};

struct SplitArguments {
  /// The command's own, each as "--name" or "--name=value", with '-' for '_' in the name.
  std::vector<std::string> flags;
  /// The program and what is for it, untouched. Empty when none is given.
  std::vector<std::string> program;
};

/// The flag that "--name" or "--name=value" names: in full, or by a prefix that no other flag has.
/// '_' stands for '-'. Errors: UsageError where there is none or several, with the nearest name, or
/// else `help`, the command that lists them.
const FlagName& find_flag(const std::string& text, const std::vector<FlagName>& known,
                          const std::string& help = "--help");

/// Tells a command's own flags from the program to run and its arguments: the program is what comes
/// first that is neither a flag nor a flag's value. "--" before it ends the flags. As torchrun
/// does, takes a unique prefix of a flag, "-r=3" for "-r3", and "-mr3" for "-m -r3". Errors:
/// UsageError for a flag that is not known, stands for several or has no value, with the nearest
/// name.
SplitArguments split_arguments(const std::vector<std::string>& arguments,
                               const std::vector<FlagName>& known);

/// Takes one of SplitArguments::flags apart: the name without dashes, the value or "".
std::pair<std::string, std::string> name_and_value(const std::string& flag);

}  // namespace lockstep::inline internal
