#include "lockstep/job/internal/launched_place.h"

#include <array>

#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/slurm_lists.h"

namespace lockstep::inline internal {
namespace {

using Launcher = LaunchedPlace::Launcher;

std::optional<int> local_size_of_srun() {
  const auto tasks = env::text(env::kSlurmTasksPerNode);
  const auto node = env::integer(env::kSlurmNode);
  if (!tasks || !node) return std::nullopt;
  return tasks_on_node(*tasks, *node);
}

// What a launcher tells each process, in place of RANK, WORLD_SIZE and so on.
struct Names {
  Launcher launcher;
  const env::Variable& rank;
  const env::Variable& world_size;
  const env::Variable& local_rank;
  bool needs_local_rank;  // without which another launcher's variables count
  std::optional<int> (*local_world_size)();
};

// In this order: mpirun may start its processes through srun, whose variables they then have too;
// srun --mpi=pmi2 sets rank and size as MPICH's mpirun does, but not the place on the machine.
const std::array kLaunchers = {
    Names{Launcher::kOpenMpi, env::kOpenMpiRank, env::kOpenMpiWorldSize, env::kOpenMpiLocalRank,
          false, [] { return env::integer(env::kOpenMpiLocalWorldSize); }},
    Names{Launcher::kPmi, env::kPmiRank, env::kPmiWorldSize, env::kPmiLocalRank, true,
          [] { return env::integer(env::kPmiLocalWorldSize); }},
    Names{Launcher::kSlurm, env::kSlurmRank, env::kSlurmWorldSize, env::kSlurmLocalRank, false,
          local_size_of_srun},
    Names{Launcher::kPmi, env::kPmiRank, env::kPmiWorldSize, env::kPmiLocalRank, false,
          [] { return env::integer(env::kPmiLocalWorldSize); }},
};

}  // namespace

std::optional<LaunchedPlace> launched_place() {
  for (const Names& names : kLaunchers) {
    const auto rank = env::integer(names.rank);
    const auto world_size = env::integer(names.world_size);
    const auto local_rank = env::integer(names.local_rank);
    if (!rank || !world_size || (names.needs_local_rank && !local_rank)) continue;
    const auto local_world_size = names.local_world_size();
    return LaunchedPlace{.launcher = names.launcher,
                         .rank = *rank,
                         .world_size = *world_size,
                         .local_rank = local_rank.value_or(*rank),
                         .local_world_size = local_world_size.value_or(*world_size),
                         .one_machine = local_world_size == *world_size};
  }
  return std::nullopt;
}

std::optional<int> launched_rank() {
  if (const auto rank = env::integer(env::kRank)) return rank;
  const auto place = launched_place();
  return place ? std::optional(place->rank) : std::nullopt;
}

}  // namespace lockstep::inline internal
