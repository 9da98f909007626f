#pragma once

#include <optional>
#include <vector>

#include "tools/doctor/doctor_flags.h"
#include "tools/doctor/finding.h"

namespace lockstep::inline internal {

/// Has the machines that run the same command meet, as those of a job do, and one worker on each
/// examine them. Nothing where they did not: the launcher has said why. Errors: as of a launcher.
std::optional<std::vector<Finding>> examine_by_meeting(const DoctorFlags& flags);

/// The worker's part: leaves the findings on all machines in the file `flags.meet`.
/// Errors: Error when the others cannot be reached.
void take_part_in_meeting(const DoctorFlags& flags);

}  // namespace lockstep::inline internal
