#include "lockstep/os/machine/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace lockstep::inline internal {

std::optional<int> terminal_columns(int fd) {
  constexpr int kClassicColumns = 80;
  if (::isatty(fd) == 0) return std::nullopt;
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kClassicColumns;
  return size.ws_col;
}

}  // namespace lockstep::inline internal
