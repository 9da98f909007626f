#include "lockstep/os/files/write_all.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <poll.h>
#include <unistd.h>

#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {

bool write_all(int fd, std::string_view text, Deadline deadline) noexcept {
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    const int count = ::poll(&ready, 1, poll_timeout(deadline));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || (ready.revents & (POLLERR | POLLNVAL)) != 0) return false;
    // A pipe reported as writable takes PIPE_BUF bytes without blocking.
    const ssize_t written = ::write(fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace lockstep::inline internal
