#include "lockstep/one_copy/internal/slot_plan.h"

#include <cstddef>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {

std::vector<int> assign_slots(const std::vector<int>& had, int slots) {
  LOCKSTEP_ASSERT(had.size() <= static_cast<std::size_t>(slots));
  std::vector<bool> is_taken(static_cast<std::size_t>(slots));
  std::vector<int> assigned(had.size(), -1);
  for (std::size_t rank = 0; rank < had.size(); ++rank) {
    if (had[rank] < 0 || had[rank] >= slots || is_taken[static_cast<std::size_t>(had[rank])]) {
      continue;
    }
    assigned[rank] = had[rank];
    is_taken[static_cast<std::size_t>(had[rank])] = true;
  }
  std::size_t next = 0;
  for (int& slot : assigned) {
    if (slot >= 0) continue;
    while (is_taken[next]) ++next;
    slot = static_cast<int>(next);
    is_taken[next] = true;
  }
  return assigned;
}

}  // namespace lockstep::inline internal
