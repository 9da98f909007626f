#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cli/run_flags.h"

namespace lockstep {

/// Where a job's machines meet.
struct RendezvousOptions {
  int node_count = 1;
  int node_rank = 0;
  std::string master_address = "127.0.0.1";
  /// 0: any free one.
  std::uint16_t master_port = 0;
};

/// What --standalone, --nnodes, --node-rank, --master-*, --local-addr and --rdzv-* mean together.
/// Errors: UsageError.
RendezvousOptions resolve_rendezvous(const RunFlags& flags);

}  // namespace lockstep
