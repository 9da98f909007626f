#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/job/launch_options.h"
#include "launcher/logs/log_tail.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Where a worker writes; a descriptor that is not valid stands for the launcher's own stream.
struct WorkerStreams {
  UniqueFd out{};
  UniqueFd err{};
};

/// Opens the log files of one worker and adds those that the console shows to `shown`. `pattern`:
/// of the prefix of each line there. Errors: SystemError naming the file.
WorkerStreams open_worker_streams(const LaunchOptions& options,
                                  const std::filesystem::path& directory,
                                  const std::string& pattern, int local_rank, int rank,
                                  std::vector<TailedLog>& shown);

}  // namespace lockstep::inline internal
