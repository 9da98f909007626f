#pragma once

#include <cstring>

#include <sys/socket.h>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// The one descriptor that a message over a Unix socket may have beside its bytes.
/// Lifetime: the message's header points into it.
class PassedFd {
 public:
  PassedFd() = default;
  PassedFd(const PassedFd&) = delete;
  PassedFd& operator=(const PassedFd&) = delete;

  void send_with(msghdr& header, int fd) noexcept {
    header.msg_control = control_;
    header.msg_controllen = sizeof control_;
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }

  /// For one: others that the sender adds, the kernel closes.
  void receive_with(msghdr& header) noexcept {
    header.msg_control = control_;
    // Not the size of the buffer: aligned, it has space for a second, which nobody would close.
    header.msg_controllen = CMSG_LEN(sizeof(int));
  }

  /// Of a message that was received; invalid where it had none.
  static UniqueFd take(msghdr& header) noexcept {
    const cmsghdr* const control = CMSG_FIRSTHDR(&header);
    if (control == nullptr || control->cmsg_level != SOL_SOCKET ||
        control->cmsg_type != SCM_RIGHTS || control->cmsg_len < CMSG_LEN(sizeof(int))) {
      return {};
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return UniqueFd(fd);
  }

 private:
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace lockstep::inline internal
