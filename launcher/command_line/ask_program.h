#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Options of ask_program.
struct AskOptions {
  /// The program is killed after this time.
  std::chrono::milliseconds patience{10'000};
  /// Show its standard error; else it is discarded.
  bool show_errors = false;
};

/// Result of a program.
struct ProgramResult {
  int status = -1;  ///< exit code; -1: killed by the timeout or a signal
  std::string out{};
};

/// Runs a program and returns its standard output and exit code. The first word is its path.
/// Threads: as spawn_process.
/// Errors: as spawn_process.
ProgramResult ask_program(const std::vector<std::string>& words, const AskOptions& options = {});

}  // namespace lockstep::inline internal
