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

/// A place in the code of a process.
struct StackFrame {
  std::uint64_t address = 0;
  std::string module{};  ///< file it was loaded from; empty: unknown
  std::uint64_t offset = 0;
  /// Source lines; inlined functions come before their caller. Empty: unknown.
  std::vector<SourceLine> lines{};
};

/// A collective that a worker started.
struct StartedCollective {
  std::string call{};  ///< "all_reduce number 87 of group 'default'"
  bool ended = false;
};

/// A worker's report of its crash.
struct CrashReport {
  /// "SIGSEGV at address 0x0", "std::out_of_range: no such sample, uncaught"
  std::string cause{};
  std::string thread{};  ///< name of the thread; empty: the main thread
  std::vector<StackFrame> frames{};
  std::vector<StartedCollective> collectives{};  ///< the newest first
};

/// "SIGSEGV at address 0x0 in train_step(int) train.cpp:42"
std::string crash_message(const CrashReport& crash);

/// Innermost call in the program's own code: "train_step(int) train.cpp:42". Empty: none.
std::string own_place(const std::vector<StackFrame>& frames);

/// The stack as lines, innermost call first, starting where the program's own code failed.
std::vector<std::string> stack_lines(const std::vector<StackFrame>& frames);

/// The first `most` lines, and a line with the number of the others.
std::vector<std::string> shortened(std::vector<std::string> lines, std::size_t most);

/// "in all_reduce number 87 of group 'default'; before it broadcast number 86 of group 'default'".
/// Empty: there were none.
std::string last_collectives(const std::vector<StartedCollective>& collectives);

}  // namespace lockstep::inline internal
