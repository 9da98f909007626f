#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Which rank passes memory files to which; equal on all ranks except `is_receiver`.
struct FilePassing {
  int source = 0;
  int receivers = 0;  ///< Number of ranks that receive, without the source.
  bool is_receiver = false;
  std::size_t files = 0;             ///< Number per receiver.
  std::string purpose = "one copy";  ///< first words of the names of its collectives
};

/// Passes memory files from one rank to others of the same machine; returns those that this rank
/// has received. `own`: on the source, the files. Collective.
/// Errors: SystemError on a rank that could not receive them; as Work::wait if a rank is lost.
std::vector<UniqueFd> pass_files(const ProcessGroup& group, const FilePassing& passing,
                                 std::span<const int> own);

}  // namespace lockstep::inline internal
