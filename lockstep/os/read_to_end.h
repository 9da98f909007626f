#pragma once

#include <string>

#include "lockstep/base/deadline.h"

namespace lockstep {

/// All that comes from a descriptor until its writers are gone; at the deadline, what has come by
/// then. Errors of reading end it like the writers' end.
std::string read_to_end(int fd, Deadline deadline);

}  // namespace lockstep
