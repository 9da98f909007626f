#pragma once

#include <vector>

namespace lockstep::inline internal {

/// A meeting of all ranks: none ends before the last has begun. By the clock of the rank.
struct MeetingSpan {
  double begin_us = 0;
  double end_us = 0;
};

/// What is added to a rank's times so that they are by rank 0's clock, from meetings that both were
/// in, in their order. As the clocks are, where that is possible: where each meeting has begun on
/// both before it ends on either. Else the middle of what is possible, which is off by half a
/// meeting's length at most. Pure.
double clock_shift_us(const std::vector<MeetingSpan>& of_rank_0,
                      const std::vector<MeetingSpan>& of_rank);

}  // namespace lockstep::inline internal
