#pragma once

#include <optional>
#include <vector>

#include "tools/doctor/doctor_flags.h"
#include "tools/doctor/finding.h"

namespace lockstep::inline internal {

/// Starts a job of one worker on each machine, which runs the same command, to examine them.
/// Nothing where the rendezvous failed: the launcher has said why. Errors: as run_job().
std::optional<std::vector<Finding>> examine_by_meeting(const DoctorFlags& flags);

/// The worker: writes the findings on all machines to the file `flags.meet`.
/// Errors: Error when the others cannot be reached.
void take_part_in_meeting(const DoctorFlags& flags);

}  // namespace lockstep::inline internal
