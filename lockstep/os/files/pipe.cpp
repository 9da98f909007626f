#include "lockstep/os/files/pipe.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("make a pipe", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace lockstep::inline internal
