#pragma once

#include <vector>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// The allowed plans that are simpler than this one by one thing, in a fixed order.
std::vector<Plan> cuts(const Plan& plan);

}  // namespace lockstep::differential
