#pragma once

#include <functional>

#include <sys/types.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Runs a function in a forked process: work that may block without end, or that must outlive us.
/// The body gets the read end of a pipe; end of file there means: finish(), or this process died.
/// Threads: make it where no other thread runs, since only the forking one goes on in the helper.
/// Lifetime: the destructor kills a helper that has not ended.
/// Errors: SystemError when no process can be made.
class HelperProcess {
 public:
  using Body = std::function<void(int control_fd)>;

  /// `name` is what ps shows, at most 15 characters.
  HelperProcess(const char* name, const Body& body);
  HelperProcess(HelperProcess&&) = default;
  HelperProcess& operator=(HelperProcess&&) = delete;
  ~HelperProcess();

  pid_t pid() const { return pid_; }
  /// Where the body's control_fd reads from.
  int control_fd() const { return control_.get(); }

  /// Tells the body to end.
  void request_end() { control_.reset(); }
  bool ended() const;

  /// Tells the body to end and waits for that. False when the deadline passed first.
  bool finish(Deadline deadline);

 private:
  pid_t pid_ = 0;
  UniqueFd control_;
  /// Refers to the very process even when somebody else has reaped it and its pid is given again.
  UniqueFd process_;
};

/// For a body: closes the descriptors from `first` on, except `kept`. What a helper keeps open
/// stays open for as long as it runs: a port, a pipe that somebody reads to its end.
void close_files_from(int first, int kept) noexcept;

}  // namespace lockstep::inline internal
