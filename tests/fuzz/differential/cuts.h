#pragma once

#include <vector>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// Plans that are simpler than this one by one thing each, in a fixed order; only plans
/// that are allowed.
std::vector<Plan> cuts(const Plan& plan);

}  // namespace lockstep::differential
