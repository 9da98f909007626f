#pragma once

#include <vector>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// Plans that are each simpler than this one by one thing, in a fixed order: those that are
/// allowed.
std::vector<Plan> cuts(const Plan& plan);

}  // namespace lockstep::differential
