#pragma once

#include <optional>
#include <vector>

#include <signal.h>

#include "lockstep/os/files/pipe.h"

namespace lockstep::inline internal {

/// While it lives, those of the signals that would end the process are noted instead, whichever
/// thread gets them; those that the program ignores or handles itself stay as they are.
/// Threads: any, but one object at a time. Errors: UsageError for a second one, SystemError.
class CaughtSignals {
 public:
  explicit CaughtSignals(const std::vector<int>& signals);
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  /// What was not read is lost.
  ~CaughtSignals();

  /// To poll for POLLIN.
  int fd() const { return pipe_.read_end.get(); }
  /// The next signal that has arrived, without waiting.
  std::optional<int> next();
  /// When it is gone the signals do nothing, in place of ending the process.
  void leave_ignored() { are_left_ignored_ = true; }

 private:
  Pipe pipe_;
  bool are_left_ignored_ = false;
  std::vector<int> caught_;
};

}  // namespace lockstep::inline internal
