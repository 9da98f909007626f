#pragma once

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Several descriptors as one, which polls as readable (POLLIN) when any of them is.
/// Errors: SystemError.
class WakeSet {
 public:
  WakeSet();
  void add(int fd);
  /// Call it before closing a descriptor that other processes hold open too.
  void remove(int fd);
  int fd() const { return epoll_.get(); }

 private:
  UniqueFd epoll_;
};

}  // namespace lockstep::inline internal
