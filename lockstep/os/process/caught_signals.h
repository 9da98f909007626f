#pragma once

#include <optional>
#include <vector>

#include <signal.h>

#include "lockstep/os/files/pipe.h"

namespace lockstep::inline internal {

/// While it lives, records those of the signals that would kill the process, on any thread. Signals
/// that the program ignores or handles are unchanged.
/// Threads: any, but one object at a time.
/// Errors: UsageError for a second object; SystemError.
class CaughtSignals {
 public:
  explicit CaughtSignals(const std::vector<int>& signals);
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  /// Discards signals that were not read.
  ~CaughtSignals();

  /// Poll it for POLLIN.
  int fd() const { return pipe_.read_end.get(); }
  /// The next recorded signal, without waiting.
  std::optional<int> next();
  /// Ignore the signals after the destructor, instead of letting them kill the process.
  void leave_ignored() { are_left_ignored_ = true; }

 private:
  Pipe pipe_;
  bool are_left_ignored_ = false;
  std::vector<int> caught_;
};

}  // namespace lockstep::inline internal
