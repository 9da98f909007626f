#pragma once

#include <string>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// A program that runs this plan alone, whatever seeds will stand for later: compiled with the
/// fuzzer's other sources it fails where the plan does.
std::string program(const Plan& plan);

}  // namespace lockstep::differential
