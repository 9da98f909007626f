#pragma once

#include <cstdint>
#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Where a job's machines meet, and where its store is.
struct JobPlace {
  RendezvousOptions rendezvous{};
  /// Of the store, for a job on one machine.
  std::string master_address = "127.0.0.1";
  /// 0: any free one.
  std::uint16_t master_port = 0;
};

/// What --standalone, --nnodes, --node-rank, --master-*, --local-addr and --rdzv-* mean together.
/// `secret`: what the machines of the job have in common; empty: nothing. Errors: UsageError.
JobPlace resolve_rendezvous(const RunFlags& flags, const std::string& secret);

}  // namespace lockstep::inline internal
