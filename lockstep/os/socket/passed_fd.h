#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include <sys/socket.h>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// At most one descriptor that a message over a Unix socket carries (SCM_RIGHTS).
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

  /// Receives one descriptor; the kernel closes further ones that the sender adds.
  void receive_with(msghdr& header) noexcept {
    header.msg_control = control_;
    // Not the size of the buffer: aligned, it has space for a second, which nobody would close.
    header.msg_controllen = CMSG_LEN(sizeof(int));
  }

  /// The descriptor of a received message; invalid if there is none.
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

/// Descriptors that a message over a Unix socket carries (SCM_RIGHTS).
/// Lifetime: the message's header points into it.
class PassedFds {
 public:
  /// Maximum per message. (The system allows 253.)
  static constexpr std::size_t kMost = 64;

  PassedFds() = default;
  PassedFds(const PassedFds&) = delete;
  PassedFds& operator=(const PassedFds&) = delete;

  /// Adds a descriptor to send, kMost at most.
  void add(int fd) noexcept { fds_[count_++] = fd; }
  void send_with(msghdr& header) noexcept {
    if (count_ == 0) return;
    header.msg_control = control_;
    header.msg_controllen = CMSG_SPACE(count_ * sizeof(int));
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(count_ * sizeof(int));
    std::memcpy(CMSG_DATA(control), fds_.data(), count_ * sizeof(int));
  }

  void receive_with(msghdr& header) noexcept {
    header.msg_control = control_;
    header.msg_controllen = sizeof control_;
  }
  /// The descriptors of a received message, in order.
  static std::vector<UniqueFd> take(msghdr& header) {
    std::vector<UniqueFd> taken;
    const cmsghdr* const control = CMSG_FIRSTHDR(&header);
    if (control == nullptr || control->cmsg_level != SOL_SOCKET ||
        control->cmsg_type != SCM_RIGHTS) {
      return taken;
    }
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      taken.emplace_back(fd);
    }
    return taken;
  }

 private:
  static_assert(kMost * sizeof(int) % sizeof(std::size_t) == 0);  // Else there is room for more.

  std::array<int, kMost> fds_{};
  std::size_t count_ = 0;
  alignas(cmsghdr) char control_[CMSG_SPACE(kMost * sizeof(int))] = {};
};

}  // namespace lockstep::inline internal
