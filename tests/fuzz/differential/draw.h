#pragma once

#include <cstdint>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// The training that a seed stands for. `ranks` and `seed` alone decide.
Plan draw(std::uint64_t seed, int ranks);

}  // namespace lockstep::differential
