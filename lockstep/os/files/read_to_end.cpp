#include "lockstep/os/files/read_to_end.h"

#include <algorithm>
#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {

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
