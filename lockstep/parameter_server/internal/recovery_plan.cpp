#include "lockstep/parameter_server/internal/recovery_plan.h"

#include <algorithm>

namespace lockstep::parameter_server::inline internal {
namespace {

using Kind = Recovery::Kind;

bool has_snapshot(const ServerStanding& server, std::int64_t updates) {
  return std::ranges::count(server.snapshots, updates) > 0;
}

// Nothing has been learned, or nothing that could be found again.
bool is_untouched(const ServerStanding& server) {
  return server.updates.value_or(0) == 0 && server.snapshots.empty();
}

Recovery plan_for_all(const std::vector<ServerStanding>& servers) {
  std::int64_t most = 0;
  for (const ServerStanding& server : servers) most = std::max(most, server.updates.value_or(0));
  const bool all_can_reach = std::ranges::all_of(servers, [&](const ServerStanding& server) {
    return server.updates &&
           (*server.updates == most || (*server.updates == most - 1 && server.has_next));
  });
  if (all_can_reach && most > 0) return {.kind = Kind::kKeep, .updates = most};
  Recovery newest{.kind = Kind::kLost};
  for (const std::int64_t updates : servers.front().snapshots) {
    const bool all_have_it = std::ranges::all_of(
        servers, [&](const ServerStanding& server) { return has_snapshot(server, updates); });
    if (all_have_it && updates > newest.updates)
      newest = {.kind = Kind::kSnapshot, .updates = updates};
  }
  // Also where a job ended while it wrote its very first snapshots: what some have is of no use,
  // and the first values lead there again.
  const bool none_runs = std::ranges::all_of(
      servers, [](const ServerStanding& server) { return server.updates.value_or(0) == 0; });
  const bool one_has_none = std::ranges::any_of(
      servers, [](const ServerStanding& server) { return server.snapshots.empty(); });
  if (newest.kind == Kind::kLost && none_runs && one_has_none) return {.kind = Kind::kBegin};
  return newest;
}

}  // namespace

std::vector<Recovery> plan_recovery(const std::vector<ServerStanding>& servers, bool synchronous) {
  if (synchronous) return std::vector<Recovery>(servers.size(), plan_for_all(servers));
  const bool all_untouched = std::ranges::all_of(servers, is_untouched);
  std::vector<Recovery> plans;
  for (const ServerStanding& server : servers) {
    if (all_untouched) {
      plans.push_back({.kind = Kind::kBegin});
    } else if (server.updates) {
      plans.push_back({.kind = Kind::kKeep, .updates = *server.updates});
    } else if (server.snapshots.empty()) {
      plans.push_back({.kind = Kind::kLost});
    } else {
      plans.push_back({.kind = Kind::kSnapshot, .updates = std::ranges::max(server.snapshots)});
    }
  }
  return plans;
}

std::vector<std::int64_t> plan_steps(const std::vector<std::optional<TrainerStanding>>& trainers,
                                     const std::vector<ServerClock>& servers, bool synchronous) {
  const std::int64_t slowest = std::ranges::min(servers, {}, &ServerClock::slowest).slowest;
  if (synchronous) return std::vector<std::int64_t>(trainers.size(), slowest);
  std::size_t next_lost = 0;
  const auto take_lost = [&] {
    const auto is_here = [&](const std::optional<TrainerStanding>& trainer) {
      return trainer && static_cast<std::size_t>(trainer->index) == next_lost;
    };
    while (std::ranges::any_of(trainers, is_here)) ++next_lost;
    return next_lost++;
  };
  std::vector<std::int64_t> steps;
  for (const auto& trainer : trainers) {
    if (trainer) {
      steps.push_back(trainer->steps);
      continue;
    }
    const std::size_t lost = take_lost();
    std::optional<std::int64_t> fewest;
    for (const ServerClock& server : servers) {
      if (lost < server.trainers.size())
        fewest = std::min(fewest.value_or(server.trainers[lost]), server.trainers[lost]);
    }
    steps.push_back(fewest.value_or(slowest));
  }
  return steps;
}

}  // namespace lockstep::parameter_server::inline internal
