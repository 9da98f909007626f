#include "lockstep/os/files/pipe.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("make a pipe", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

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

std::string read_to_end(int fd, Deadline deadline) {
  std::string text;
  pollfd ready{fd, POLLIN, 0};
  char part[4096];
  for (;;) {
    const int count = ::poll(&ready, 1, poll_timeout(deadline));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    const ssize_t got = ::read(fd, part, sizeof part);
    if (got <= 0) return text;
    text.append(part, std::min(static_cast<std::size_t>(got), kMostBytesToEnd - text.size()));
  }
}

}  // namespace lockstep::inline internal
