#pragma once

#include <filesystem>

#include "lockstep/launch/attempt_outcome.h"

namespace lockstep {

/// Gives the stacks of all workers that crashed their names, and their errors the place.
/// Takes a few seconds at most, and no time where no worker crashed. Never throws.
void explain_crashes(AttemptOutcome& outcome) noexcept;

/// In their error files too, where whoever looks into the logs finds them. `job`: the directory of
/// the job's logs.
void explain_crashes(AttemptOutcome& outcome, const std::filesystem::path& job) noexcept;

}  // namespace lockstep
