#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Who passes memory files to whom, the same on all ranks but for `is_receiver`.
struct FilePassing {
  int source = 0;
  int receivers = 0;  ///< How many ranks receive; the source is none.
  bool is_receiver = false;
  std::size_t files = 0;  ///< To each.
};

/// Passes memory files from one rank to others of the same machine. Collective. `own`: on the
/// source, the files. Returns those that this rank has received.
/// Errors: SystemError on a rank that could not receive them; as Work::wait where a rank is lost.
std::vector<UniqueFd> pass_files(const ProcessGroup& group, const FilePassing& passing,
                                 std::span<const int> own);

}  // namespace lockstep::inline internal
