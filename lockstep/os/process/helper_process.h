#pragma once

#include <functional>

#include <sys/types.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Runs a function in a forked process: work that may block without limit, or that must outlive
/// this process. The body gets the read end of a pipe; end of file there means that finish() was
/// called or this process ended.
/// Threads: create it while no other thread runs: only the forking thread exists in the helper.
/// Lifetime: the destructor kills a helper that has not ended.
/// Errors: SystemError if no process can be created.
class HelperProcess {
 public:
  using Body = std::function<void(int control_fd)>;

  /// `name`: shown by ps, at most 15 characters.
  HelperProcess(const char* name, const Body& body);
  HelperProcess(HelperProcess&&) = default;
  HelperProcess& operator=(HelperProcess&&) = delete;
  ~HelperProcess();

  pid_t pid() const { return pid_; }
  /// Write end of the pipe that the body's control_fd reads.
  int control_fd() const { return control_.get(); }

  /// Requests the body to end.
  void request_end() { control_.reset(); }
  bool ended() const;

  /// Requests the body to end and waits for it. Returns false if the deadline expires first.
  bool finish(Deadline deadline);

 private:
  pid_t pid_ = 0;
  UniqueFd control_;
  /// A pidfd: valid even if another part of the program has reaped it and its pid is reused.
  UniqueFd process_;
};

/// For a body: closes the descriptors from `first` on, except `kept`. A descriptor that a helper
/// keeps stays open while it runs: a port, or a pipe whose reader waits for its end.
void close_files_from(int first, int kept) noexcept;

}  // namespace lockstep::inline internal
