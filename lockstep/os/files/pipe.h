#pragma once

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

/// A pipe whose ends are closed in programs that this one executes. Errors: SystemError.
Pipe make_pipe();

}  // namespace lockstep::inline internal
