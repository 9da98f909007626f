#include "lockstep/recovery/internal/standing.h"

#include <algorithm>
#include <functional>

namespace lockstep::inline internal {

namespace {

std::int64_t most(const std::vector<Sources>& ranks, std::int64_t Sources::*steps) {
  return std::invoke(steps, *std::ranges::max_element(ranks, {}, steps));
}

}  // namespace

SourceChoice choose_source(const std::vector<Sources>& ranks) {
  using Kind = SourceChoice::Kind;
  const auto rank_of = [&](auto rank) { return static_cast<int>(rank - ranks.begin()); };
  const auto furthest = std::ranges::max_element(ranks, {}, &Sources::state);  // The first.
  if (const Standing state = furthest->state; state.exists()) {
    const auto is_there = [&](const Sources& rank) { return rank.state == state; };
    const Kind kind = std::ranges::all_of(ranks, is_there) ? Kind::kOwn : Kind::kRank;
    return {.kind = kind, .rank = rank_of(furthest), .standing = state};
  }
  const auto kept = std::ranges::max_element(ranks, {}, &Sources::memory);
  // All see one folder, of which they are to go by one view.
  const std::int64_t snapshot_steps = ranks.front().snapshot_steps;
  Kind kind = Kind::kBegin;
  if (snapshot_steps > kept->memory.steps) {
    kind = Kind::kSnapshot;
  } else if (kept->memory.exists()) {
    kind = Kind::kMemory;
  } else if (const std::int64_t steps = most(ranks, &Sources::known_steps); steps >= 0) {
    return {.kind = Kind::kLost, .standing = {.steps = steps}};
  }
  return {.kind = kind, .rank = rank_of(kept), .standing = kept->memory};
}

}  // namespace lockstep::inline internal
