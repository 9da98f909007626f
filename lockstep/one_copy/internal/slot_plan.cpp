#include "lockstep/one_copy/internal/slot_plan.h"

#include <cstddef>

namespace lockstep::inline internal {

std::optional<std::vector<int>> assign_slots(const std::vector<int>& had,
                                             const std::vector<bool>& is_held) {
  const std::size_t slots = is_held.size();
  std::vector<bool> is_taken(slots);
  std::vector<int> assigned(had.size(), -1);
  for (std::size_t rank = 0; rank < had.size(); ++rank) {
    if (had[rank] < 0) continue;
    const auto slot = static_cast<std::size_t>(had[rank]);
    if (slot >= slots || is_taken[slot]) continue;
    assigned[rank] = had[rank];
    is_taken[slot] = true;
  }
  std::size_t next = 0;
  for (int& slot : assigned) {
    if (slot >= 0) continue;
    while (next < slots && (is_taken[next] || is_held[next])) ++next;
    if (next == slots) return std::nullopt;
    slot = static_cast<int>(next);
    is_taken[next] = true;
  }
  return assigned;
}

}  // namespace lockstep::inline internal
