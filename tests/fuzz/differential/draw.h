#pragma once

#include <cstdint>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// The training that a seed stands for. `ranks` and `seed` alone decide.
Plan draw(std::uint64_t seed, int ranks);
/// In logical shards, on any number of ranks.
Plan draw_in_shards(std::uint64_t seed);
/// Fully sharded, in units one within another.
Plan draw_in_units(std::uint64_t seed, int ranks);

}  // namespace lockstep::differential
