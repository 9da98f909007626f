#pragma once

#include "lockstep/parameter_server/training.h"

namespace lockstep::parameter_server::inline internal {

/// Errors: UsageError saying what cannot be.
void check_parts(const Parts& parts);

}  // namespace lockstep::parameter_server::inline internal
