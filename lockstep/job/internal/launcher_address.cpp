#include "lockstep/job/internal/launcher_address.h"

#include <cstdint>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/job_port.h"
#include "lockstep/job/internal/slurm_lists.h"

namespace lockstep::inline internal {
namespace {

using Launcher = LaunchedPlace::Launcher;
using Store = RendezvousStore;

constexpr const char* kLoopback = "127.0.0.1";

// FNV-1a.
int port_of_text(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  return port_of_number(hash);
}

// Of more digits than an int has: the numbers of federated jobs and special steps.
std::optional<std::uint64_t> number_in(const env::Variable& variable) {
  return parse_number<std::uint64_t>(env::text(variable).value_or(""));
}

LauncherAddress address_of_step(const LaunchedPlace& place, const std::optional<std::string>& host,
                                std::optional<int> port) {
  const auto nodes = env::text(env::kSlurmNodes);
  const auto first = place.one_machine ? std::optional<std::string>(kLoopback)
                     : nodes           ? first_host(*nodes)
                                       : std::nullopt;
  const auto job = number_in(env::kSlurmJob);
  const auto step = number_in(env::kSlurmStep);
  if (!port && job && step) port = port_of_step(*job, *step);
  if ((!host && !first) || !port) {
    throw UsageError(
        concat("init_process_group: srun started this process, but SLURM_STEP_NODELIST='",
               nodes.value_or(""), "', SLURM_JOB_ID='", env::text(env::kSlurmJob).value_or(""),
               "' and SLURM_STEP_ID='", env::text(env::kSlurmStep).value_or(""),
               "' give no address of rank 0; set MASTER_ADDR and "
               "MASTER_PORT on all ranks"));
  }
  return {.store = Store::kTcp,
          .host = host.value_or(first.value_or("")),
          .port = *port,
          .source = "SLURM_STEP_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID"};
}

const char* name_of(MpiLibrary mpi) {
  switch (mpi) {
    case MpiLibrary::kNone:
      return "no MPI";
    case MpiLibrary::kOpenMpi:
      return "Open MPI";
    case MpiLibrary::kOther:
      break;
  }
  return "another MPI";
}

}  // namespace

LauncherAddress launcher_address(const LaunchedPlace& place, MpiLibrary mpi) {
  const auto host = env::text(env::kMasterAddr);
  const auto port = env::integer(env::kMasterPort);
  if (host && port) return {.store = Store::kTcp, .host = *host, .port = *port};
  if (place.launcher == Launcher::kSlurm) return address_of_step(place, host, port);

  const auto builder =
      place.launcher == Launcher::kOpenMpi ? MpiLibrary::kOpenMpi : MpiLibrary::kOther;
  if (mpi == builder) return {.store = Store::kMpi};
  if (place.launcher == Launcher::kPmi && env::integer(env::kPmiConnection)) {
    return {.store = Store::kPmi};
  }
  const auto job = env::text(env::kOpenMpiJob);
  if (place.launcher == Launcher::kOpenMpi && place.one_machine && job) {
    return {.store = Store::kTcp,
            .host = kLoopback,
            .port = port_of_text(*job),
            .source = "PMIX_NAMESPACE"};
  }
  throw UsageError(concat(
      "init_process_group: mpirun started this process, but this build has ", name_of(mpi),
      ", which cannot exchange the address of rank 0; set MASTER_ADDR to the machine of rank 0 and "
      "MASTER_PORT to a free port on it, or build with the MPI of this mpirun"));
}

}  // namespace lockstep::inline internal
