#include "launcher/cli/srun_step.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/job_port.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/job/internal/slurm_lists.h"

namespace lockstep::inline internal {
namespace {

bool says_how_to_meet(const RunFlags& flags) {
  for (const std::string* flag : {&flags.nnodes, &flags.node_rank, &flags.master_addr,
                                  &flags.rdzv_backend, &flags.rdzv_endpoint}) {
    if (!flag->empty()) return true;
  }
  return flags.standalone;
}

}  // namespace

std::optional<SrunStep> srun_step() {
  const auto place = launched_place();
  if (!place || place->launcher != LaunchedPlace::Launcher::kSlurm) return std::nullopt;
  const auto node = env::integer(env::kSlurmNode);
  const auto first = first_host(env::text(env::kSlurmNodes).value_or(""));
  const auto job = parse_number<std::uint64_t>(env::text(env::kSlurmJob).value_or(""));
  const auto step = parse_number<std::uint64_t>(env::text(env::kSlurmStep).value_or(""));
  if (!node || !first || !job || !step) return std::nullopt;
  return SrunStep{.launchers = place->world_size,
                  .launchers_here = place->local_world_size,
                  .node_rank = *node,
                  .first_host = *first,
                  .port = port_of_step(*job, *step)};
}

void meet_in_step(RunFlags& flags, const std::optional<SrunStep>& step) {
  if (!step || step->launchers == 1 || says_how_to_meet(flags)) return;
  if (step->launchers_here > 1) {
    throw UsageError(concat("srun started ", step->launchers_here,
                            " launchers on this machine, where one starts all workers; use srun "
                            "--ntasks-per-node=1 lockstep run --nproc-per-node=",
                            step->launchers_here, ", or srun the program itself"));
  }
  flags.nnodes = std::to_string(step->launchers);
  flags.node_rank = std::to_string(step->node_rank);
  flags.master_addr = step->first_host;
  if (flags.master_port.empty()) flags.master_port = std::to_string(step->port);
}

}  // namespace lockstep::inline internal
