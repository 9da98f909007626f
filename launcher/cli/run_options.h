#pragma once

#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// What the meaning of flags depends on beside themselves.
struct RunFacts {
  int allowed_cpus = 1;
  int gpus = 0;
  /// For a job on one machine that was given no id.
  std::string random_id{};
  /// Of the job: from --secret-file or LOCKSTEP_JOB_SECRET; empty: there is none.
  std::string secret{};
  /// TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or empty.
  std::string shutdown_timeout{};
};

/// What the flags of `lockstep run` mean. Errors: UsageError, one line that names the flag.
LaunchOptions resolve_run_options(const RunFlags& flags, const RunFacts& facts);

}  // namespace lockstep::inline internal
