#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/helper_process.h"

namespace lockstep::inline internal {

/// Resolves functions, files and lines of frames of ended processes, from symbols and debug
/// information of their modules. It does so in a separate process, so a malformed file harms
/// nothing else and the caller continues. Frames that are not resolved by the deadline stay without
/// names.
/// Threads: as HelperProcess.
/// Lifetime: the frames must outlive it. The destructor ends the search.
/// Errors: none; without a process the frames stay without names.
class FrameNaming {
 public:
  FrameNaming(std::vector<StackFrame*> frames, Deadline deadline) noexcept;

  /// Lowers the priority of the process, for a caller that does not wait.
  void yield_processor() const noexcept;

  /// Readable when proceed() has something to read; negative: nothing to wait for.
  int fd() const { return names_.get(); }
  /// proceed() returns true then at the latest.
  Deadline deadline() const { return deadline_; }
  /// Reads results without waiting. Returns whether the search is complete.
  bool proceed() noexcept;
  /// Waits until the search is complete.
  void finish() noexcept;

 private:
  void take_names() noexcept;

  std::vector<StackFrame*> frames_;
  Deadline deadline_;
  std::optional<HelperProcess> helper_;
  UniqueFd names_;
  std::string found_;
};

}  // namespace lockstep::inline internal
