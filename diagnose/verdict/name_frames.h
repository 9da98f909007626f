#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/helper_process.h"

namespace lockstep::inline internal {

/// Finds functions, files and lines of frames of processes that have ended, in the symbols and
/// debug information of their modules. In a process of its own: what is wrong in such a file harms
/// no more than that, and the caller goes on. What is not known by the deadline stays without.
/// Lifetime: the frames must outlive it. The destructor ends the search.
/// Threads: as HelperProcess. Errors: none; without a process the frames stay without names.
class FrameNaming {
 public:
  FrameNaming(std::vector<StackFrame*> frames, Deadline deadline) noexcept;

  /// Lets processes that have work go first, for a caller that does not wait.
  void yield_processor() const noexcept;

  /// Readable when proceed() has something to read; negative: there is nothing to wait for.
  int fd() const { return names_.get(); }
  /// proceed() is complete then at the latest.
  Deadline deadline() const { return deadline_; }
  /// Reads what has been found, without waiting. Returns whether the frames now have their names.
  bool proceed() noexcept;
  /// Waits until they have.
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
