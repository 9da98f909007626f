#pragma once

#include <optional>
#include <vector>

namespace lockstep::inline internal {

/// Assigns a different slot to each rank; empty if there are too few. `had`: by rank, its previous
/// slot, or a negative number. `is_held`: by slot, whether a live process holds it. A rank keeps
/// its slot, unless an earlier rank has it; the others get the first that is neither assigned nor
/// held.
std::optional<std::vector<int>> assign_slots(const std::vector<int>& had,
                                             const std::vector<bool>& is_held);

}  // namespace lockstep::inline internal
