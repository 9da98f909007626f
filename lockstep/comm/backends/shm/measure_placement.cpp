#include "lockstep/comm/backends/shm/measure_placement.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::shm {
namespace {

constexpr const char* kPlacementKey = "shm/placement";
constexpr std::chrono::milliseconds kMostTime{20};

}  // namespace

Placement measure_placement(Team& team, c10d::Store& store, Deadline deadline) {
  if (team.ranks() == 1) return Placement::kUnknown;
  const auto end = Deadline::after(std::min(kMostTime, deadline.remaining()));
  if (team.rank() == 0) {
    const auto round_trip_ns = ping(team.ping_line(), kPingRounds, end);
    const Placement placement =
        round_trip_ns ? classify_round_trip(*round_trip_ns) : Placement::kUnknown;
    store.set(kPlacementKey, std::string(1, static_cast<char>('0' + static_cast<int>(placement))));
    return placement;
  }
  if (team.rank() == 1) pong(team.ping_line(), kPingRounds, end);
  if (!wait_for_keys(store, {kPlacementKey}, deadline).empty()) {
    throw TimeoutError("rank 0 did not tell how far the ranks are from each other in time",
                       {.operation = "connect",
                        .group = team.group_name(),
                        .own_rank = team.number_of(team.rank()),
                        .ranks = {team.number_of(0)}});
  }
  return static_cast<Placement>(store.get_to_str(kPlacementKey)[0] - '0');
}

}  // namespace lockstep::shm
