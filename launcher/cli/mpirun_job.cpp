#include "launcher/cli/mpirun_job.h"

#include <fcntl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/job/internal/pmi_exchange.h"

namespace lockstep::inline internal {
namespace {

using Launcher = LaunchedPlace::Launcher;

// All launchers start within it, or mpirun has failed to start them.
constexpr std::chrono::milliseconds kTimeToStart{60'000};

// But for the machine of the first, which mpirun may not tell.
bool says_how_machines_meet(const RunFlags& flags) {
  for (const std::string* flag :
       {&flags.nnodes, &flags.node_rank, &flags.rdzv_backend, &flags.rdzv_endpoint}) {
    if (!flag->empty()) return true;
  }
  return flags.standalone;
}

}  // namespace

std::optional<MpirunJob> mpirun_job() {
  const auto place = launched_place();
  if (!place || place->launcher == Launcher::kSlurm) return std::nullopt;
  // Where mpirun does not tell how many are here, that is taken for all, and yet not for one
  // machine.
  const bool told = place->one_machine || place->local_world_size != place->world_size;
  MpirunJob job{.launchers = place->world_size,
                .launchers_here = told ? place->local_world_size : 1,
                .rank = place->rank};
  const auto connection = env::integer(env::kPmiConnection);
  if (place->launcher == Launcher::kPmi && connection) {
    job.broadcast = [connection, rank = place->rank](const std::string& text) {
      ::fcntl(*connection, F_SETFD, FD_CLOEXEC);  // Workers have no part in it.
      return broadcast_by_pmi("meeting of launchers", *connection, rank, text,
                              Deadline::after(kTimeToStart));
    };
  }
  return job;
}

void meet_in_job(RunFlags& flags, const std::optional<MpirunJob>& job, const std::string& own_host,
                 int port) {
  if (!job || job->launchers == 1 || says_how_machines_meet(flags)) return;
  if (job->launchers_here > 1) {
    throw UsageError(concat("mpirun started ", job->launchers_here,
                            " launchers on this machine, where one starts all workers; use mpirun "
                            "--map-by ppr:1:node (Open MPI) or mpirun -ppn 1 (MPICH) lockstep run "
                            "--nproc-per-node=",
                            job->launchers_here, ", or mpirun the program itself"));
  }
  if (flags.master_addr.empty()) {
    if (!job->broadcast) {
      throw UsageError(
          "Open MPI's mpirun does not tell where its first process is: add --master-addr=HOST, the "
          "first machine of its list, or use lockstep run --hosts=FILE in place of mpirun");
    }
    const std::string told = job->broadcast(concat(
        own_host, "/", flags.master_port.empty() ? std::to_string(port) : flags.master_port));
    const auto slash = told.find('/');
    if (slash == std::string::npos) {
      throw Error(concat("meeting of launchers: mpirun passes on '", told,
                         "', which is no address; give --master-addr=HOST"));
    }
    flags.master_addr = told.substr(0, slash);
    flags.master_port = told.substr(slash + 1);
  }
  flags.nnodes = std::to_string(job->launchers);
  flags.node_rank = std::to_string(job->rank);
}

}  // namespace lockstep::inline internal
