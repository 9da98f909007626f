#pragma once

#include <filesystem>
#include <string>

#include "diagnose/verdict/attempt_outcome.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Which worker failed first, how and of what, where it crashed, what became of the others and
/// where to look: a few lines, each begun with "lockstep: ". Needs a first_cause().
std::string failure_report(const AttemptOutcome& outcome, const LaunchOptions& options);

}  // namespace lockstep::inline internal
