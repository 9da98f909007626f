#pragma once

#include <string>
#include <vector>

#include "lockstep/ddp/internal/fingerprint.h"

namespace lockstep::inline internal {

/// What to say of replicas of which some differ, from each rank's fingerprints: the ranks unlike
/// the largest number of ranks that are alike (of several such numbers the one with the lowest
/// rank), and of each the first name whose value differs or that only one of both has, and how many
/// such names there are. Pure.
std::string describe_drift(const std::vector<Fingerprints>& ranks);

}  // namespace lockstep::inline internal
