#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/logs/log_tail.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Where one stream of a worker goes.
struct StreamPlan {
  enum class Target { kConsole, kFile, kNowhere };

  Target target = Target::kConsole;
  /// A file's lines are shown on the console too.
  bool shown = false;

  friend bool operator==(const StreamPlan&, const StreamPlan&) = default;
};

struct WorkerLogPlan {
  StreamPlan out;
  StreamPlan err;
};

WorkerLogPlan plan_worker_logs(const LaunchOptions& options, int local_rank);

/// True when any worker of this machine writes a log file.
bool writes_logs(const LaunchOptions& options);

/// "<job>/attempt_<n>/<local rank>": holds stdout.log, stderr.log and error.json.
std::filesystem::path worker_directory(const std::filesystem::path& job, int attempt,
                                       int local_rank);
/// The one of a worker.
std::filesystem::path error_file_of(const WorkerExit& worker);

/// torchrun's.
inline constexpr const char* kDefaultLinePrefix = "[${role_name}${local_rank}]:";

/// What precedes each line on the console. `pattern` may hold ${role_name}, ${local_rank}, ${rank}.
std::string log_line_prefix(const std::string& pattern, const LaunchOptions& options,
                            int local_rank, int rank);

/// Where a worker writes; a descriptor that is not valid stands for the launcher's own stream.
struct WorkerStreams {
  UniqueFd out{};
  UniqueFd err{};
};

/// Opens the log files of one worker and adds the ones shown on the console to `shown`. `pattern`:
/// of the prefix of each line there. Errors: SystemError naming the file.
WorkerStreams open_worker_streams(const LaunchOptions& options,
                                  const std::filesystem::path& directory,
                                  const std::string& pattern, int local_rank, int rank,
                                  std::vector<TailedLog>& shown);

}  // namespace lockstep::inline internal
