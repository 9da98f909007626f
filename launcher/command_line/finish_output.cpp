#include "launcher/command_line/finish_output.h"

#include <cerrno>
#include <cstdio>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // Why an earlier write failed is not known any more.
  if (errno == 0) throw Error("write to stdout: not all of it was taken; is its disk full?");
  throw SystemError("write to stdout", errno);
}

}  // namespace lockstep::inline internal
