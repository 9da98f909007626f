#pragma once

#include "diagnose/verdict/attempt_outcome.h"

namespace lockstep::inline internal {

/// Gives the stacks of all workers that crashed their names, and their errors the place.
/// In their error files too, where whoever looks into the logs finds them. Takes a few seconds at
/// most, and no time where no worker crashed. Never throws.
void explain_crashes(AttemptOutcome& outcome) noexcept;

}  // namespace lockstep::inline internal
