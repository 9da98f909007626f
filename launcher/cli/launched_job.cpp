#include "launcher/cli/launched_job.h"

#include <fcntl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/job_port.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/job/internal/pmi_exchange.h"
#include "lockstep/job/internal/slurm_lists.h"

namespace lockstep::inline internal {
namespace {

using Launcher = LaunchedPlace::Launcher;

// All launchers start within it, or mpirun has failed to start them.
constexpr std::chrono::milliseconds kTimeToStart{60'000};

// mpirun may not tell the machine of rank 0: --master-addr alone does not say how machines meet.
bool says_how_machines_meet(const RunFlags& flags, bool is_srun) {
  for (const std::string* flag :
       {&flags.nnodes, &flags.node_rank, &flags.rdzv_backend, &flags.rdzv_endpoint}) {
    if (!flag->empty()) return true;
  }
  return flags.standalone || (is_srun && !flags.master_addr.empty());
}

std::optional<LaunchedJob> srun_step(const LaunchedPlace& place) {
  const auto node = env::integer(env::kSlurmNode);
  const auto first = first_host(env::text(env::kSlurmNodes).value_or(""));
  const auto job = parse_number<std::uint64_t>(env::text(env::kSlurmJob).value_or(""));
  const auto step = parse_number<std::uint64_t>(env::text(env::kSlurmStep).value_or(""));
  if (!node || !first || !job || !step) return std::nullopt;
  return LaunchedJob{.is_srun = true,
                     .launchers = place.world_size,
                     .launchers_here = place.local_world_size,
                     .node_rank = *node,
                     .first = {*first, static_cast<std::uint16_t>(port_of_step(*job, *step))}};
}

LaunchedJob mpirun_job(const LaunchedPlace& place) {
  // Where mpirun does not tell how many are here, `place` has all of them, and is not one machine.
  const bool told = place.one_machine || place.local_world_size != place.world_size;
  LaunchedJob job{.launchers = place.world_size,
                  .launchers_here = told ? place.local_world_size : 1,
                  .node_rank = place.rank};
  const auto connection = env::integer(env::kPmiConnection);
  if (place.launcher == Launcher::kPmi && connection) {
    job.broadcast = [connection, rank = place.rank](const std::string& text) {
      ::fcntl(*connection, F_SETFD, FD_CLOEXEC);  // Workers have no part in it.
      return broadcast_by_pmi("meeting of launchers", *connection, rank, text,
                              Deadline::after(kTimeToStart));
    };
  }
  return job;
}

void refuse_several_here(const LaunchedJob& job) {
  if (job.launchers_here == 1) return;
  throw UsageError(concat(job.is_srun ? "srun" : "mpirun", " started ", job.launchers_here,
                          " launchers on this machine, where one starts all workers; use ",
                          job.is_srun
                              ? "srun --ntasks-per-node=1"
                              : "mpirun --map-by ppr:1:node (Open MPI) or mpirun -ppn 1 (MPICH)",
                          " lockstep run --nproc-per-node=", job.launchers_here,
                          ", or start the program itself with ", job.is_srun ? "srun" : "mpirun"));
}

// The address that rank 0 has and sends to all.
void take_address_of_first(RunFlags& flags, const LaunchedJob& job, const std::string& own_host,
                           int port) {
  if (!job.broadcast) {
    throw UsageError(
        "Open MPI's mpirun does not give the address of its first process; add --master-addr=HOST, "
        "the first machine of its list, or use lockstep run --hosts=FILE instead of mpirun");
  }
  const std::string told = job.broadcast(
      concat(own_host, "/", flags.master_port.empty() ? std::to_string(port) : flags.master_port));
  const auto slash = told.find('/');
  if (slash == std::string::npos) {
    throw Error(concat("rendezvous of launchers: mpirun passed '", told,
                       "', which is not an address; give --master-addr=HOST"));
  }
  flags.master_addr = told.substr(0, slash);
  flags.master_port = told.substr(slash + 1);
}

}  // namespace

std::optional<LaunchedJob> launched_job() {
  const auto place = launched_place();
  if (!place) return std::nullopt;
  return place->launcher == Launcher::kSlurm ? srun_step(*place) : mpirun_job(*place);
}

void meet_in_job(RunFlags& flags, const std::optional<LaunchedJob>& job,
                 const std::function<std::string()>& own_host, int port) {
  if (!job || job->launchers == 1 || says_how_machines_meet(flags, job->is_srun)) return;
  refuse_several_here(*job);
  if (job->is_srun) {
    flags.master_addr = job->first.host;
    if (flags.master_port.empty()) flags.master_port = std::to_string(job->first.port);
  } else if (flags.master_addr.empty()) {
    take_address_of_first(flags, *job, own_host(), port);
  }
  flags.nnodes = std::to_string(job->launchers);
  flags.node_rank = std::to_string(job->node_rank);
}

}  // namespace lockstep::inline internal
