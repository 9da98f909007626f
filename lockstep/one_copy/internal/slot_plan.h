#pragma once

#include <optional>
#include <vector>

namespace lockstep::inline internal {

/// Which slot each rank has from now on, all of them different; nothing where there are too few.
/// `had`: by rank, the slot that it had before, or a negative number. `is_held`: by slot, whether a
/// living process holds it. A rank keeps its own, unless a rank before it has that one; the others
/// take the first that nobody has or holds.
std::optional<std::vector<int>> assign_slots(const std::vector<int>& had,
                                             const std::vector<bool>& is_held);

}  // namespace lockstep::inline internal
