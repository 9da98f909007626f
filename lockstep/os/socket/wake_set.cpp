#include "lockstep/os/socket/wake_set.h"

#include <cerrno>

#include <sys/epoll.h>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

WakeSet::WakeSet() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) throw SystemError("making an epoll set", errno);
}

void WakeSet::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw SystemError("adding to an epoll set", errno);
  }
}

void WakeSet::remove(int fd) {
  epoll_event none{};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &none);
}

}  // namespace lockstep::inline internal
