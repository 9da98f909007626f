#pragma once

#include <vector>

namespace lockstep::inline internal {

/// Which slot each rank has from now on, all of them different. `had`: by rank, the slot that it
/// had before, or a negative number. A rank keeps its own, unless a rank before it has that one;
/// the others take the first that are free. At most `slots` ranks.
std::vector<int> assign_slots(const std::vector<int>& had, int slots);

}  // namespace lockstep::inline internal
