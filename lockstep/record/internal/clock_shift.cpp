#include "lockstep/record/internal/clock_shift.h"

#include <algorithm>
#include <limits>

namespace lockstep::inline internal {

double clock_shift_us(const std::vector<MeetingSpan>& of_rank_0,
                      const std::vector<MeetingSpan>& of_rank) {
  const std::size_t count = std::min(of_rank_0.size(), of_rank.size());
  if (count == 0) return 0;
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < count; ++i) {
    least = std::max(least, of_rank_0[i].begin_us - of_rank[i].end_us);
    most = std::min(most, of_rank_0[i].end_us - of_rank[i].begin_us);
  }
  return least <= 0 && 0 <= most ? 0 : least + (most - least) / 2;
}

}  // namespace lockstep::inline internal
