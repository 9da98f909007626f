#pragma once

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Descriptors as one, which can be polled for POLLIN when any of them can. Errors: SystemError.
class WakeSet {
 public:
  WakeSet();
  void add(int fd);
  /// Before it is closed, where other processes hold it open too.
  void remove(int fd);
  int fd() const { return epoll_.get(); }

 private:
  UniqueFd epoll_;
};

}  // namespace lockstep::inline internal
