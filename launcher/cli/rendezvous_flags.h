#pragma once

#include <cstdint>
#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Where a job's machines meet, and where its store is.
struct JobPlace {
  RendezvousOptions rendezvous{};
  /// Address of the store, for a job on one machine.
  std::string master_address = "127.0.0.1";
  /// Port of the store; 0: any free one.
  std::uint16_t master_port = 0;
};

/// Resolves --standalone, --nnodes, --node-rank, --master-*, --local-addr and --rdzv-*. `secret`:
/// the job's secret; empty: none.
/// Errors: UsageError.
JobPlace resolve_rendezvous(const RunFlags& flags, const std::string& secret);

}  // namespace lockstep::inline internal
