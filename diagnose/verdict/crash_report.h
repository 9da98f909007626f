#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A place in the source.
struct SourceLine {
  std::string function{};  ///< empty: unknown
  std::string file{};      ///< empty: unknown
  int line = 0;
};

/// A place in the code.
struct StackFrame {
  std::uint64_t address = 0;
  std::string module{};  ///< file that it was loaded from; empty: unknown
  std::uint64_t offset = 0;
  /// Functions that the compiler put into another come before that one. Empty: unknown.
  std::vector<SourceLine> lines{};
};

struct StartedCollective {
  std::string call{};  ///< "all_reduce number 87 of group 'default'"
  bool ended = false;
};

/// What a worker of Lockstep leaves of its crash.
struct CrashReport {
  /// "SIGSEGV at address 0x0", "std::out_of_range: no such sample, uncaught"
  std::string cause{};
  std::string thread{};  ///< empty: the first
  std::vector<StackFrame> frames{};
  std::vector<StartedCollective> collectives{};  ///< the newest first
};

/// "SIGSEGV at address 0x0 in train_step(int) train.cpp:42"
std::string crash_message(const CrashReport& crash);

/// The innermost call of the program's own: "train_step(int) train.cpp:42". Empty: there is none.
std::string own_place(const std::vector<StackFrame>& frames);

/// One line each, the innermost call first, from where the program's own code failed on.
std::vector<std::string> stack_lines(const std::vector<StackFrame>& frames);

/// The first `most` of the lines, and how many more there are.
std::vector<std::string> shortened(std::vector<std::string> lines, std::size_t most);

/// "in all_reduce number 87 of group 'default'; before it broadcast number 86 of group 'default'".
/// Empty where there was none.
std::string last_collectives(const std::vector<StartedCollective>& collectives);

}  // namespace lockstep::inline internal
