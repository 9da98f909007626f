#pragma once

#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Inputs of `lockstep run` besides the flags.
struct RunFacts {
  int allowed_cpus = 1;
  int gpus = 0;
  /// Id of a job on one machine that was given none.
  std::string random_id{};
  /// The job's secret, from --secret-file or LOCKSTEP_JOB_SECRET; empty: none.
  std::string secret{};
  /// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or empty.
  std::string shutdown_timeout{};
};

/// Resolves the flags of `lockstep run`.
/// Errors: UsageError, one line that names the flag.
LaunchOptions resolve_run_options(const RunFlags& flags, const RunFacts& facts);

}  // namespace lockstep::inline internal
