#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline internal {

struct AskOptions {
  std::chrono::milliseconds patience{10'000};
  /// What it writes to stderr is shown; otherwise it is dropped.
  bool show_errors = false;
};

/// What a program has told.
struct Told {
  int status = -1;  ///< its exit code; -1: it did not end in time, or by a signal
  std::string out{};
};

/// Runs a program, with its path as the first word, and takes what it writes to stdout. One that
/// does not end in time is killed. Threads: as spawn_process. Errors: as spawn_process.
Told ask_program(const std::vector<std::string>& words, const AskOptions& options = {});

}  // namespace lockstep::inline internal
