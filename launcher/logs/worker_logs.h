#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/logs/log_tail.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Target of one stream of a worker.
struct StreamPlan {
  enum class Target { kConsole, kFile, kNowhere };

  Target target = Target::kConsole;
  /// Also show the file's lines on the console.
  bool shown = false;

  friend bool operator==(const StreamPlan&, const StreamPlan&) = default;
};

/// Targets of both streams of a worker.
struct WorkerLogPlan {
  StreamPlan out;
  StreamPlan err;
};

/// Targets of a worker's streams.
WorkerLogPlan plan_worker_logs(const LaunchOptions& options, int local_rank);

/// Whether any worker of this machine writes a log file.
bool writes_logs(const LaunchOptions& options);

/// "<job>/attempt_<n>/<local rank>", which contains stdout.log, stderr.log and error.json.
std::filesystem::path worker_directory(const std::filesystem::path& job, int attempt,
                                       int local_rank);
/// Path of a worker's error file.
std::filesystem::path error_file_of(const WorkerExit& worker);

/// torchrun's default.
inline constexpr const char* kDefaultLinePrefix = "[${role_name}${local_rank}]:";

/// Prefix of a worker's lines on the console. `pattern` may contain ${role_name}, ${local_rank} and
/// ${rank}.
std::string log_line_prefix(const std::string& pattern, const LaunchOptions& options,
                            int local_rank, int rank);

/// Open files of a worker's streams; an invalid descriptor means the launcher's own stream.
struct WorkerStreams {
  UniqueFd out{};
  UniqueFd err{};
};

/// Opens the log files of one worker and adds those shown on the console to `shown`. `pattern`:
/// prefix of each line there.
/// Errors: SystemError with the file.
WorkerStreams open_worker_streams(const LaunchOptions& options,
                                  const std::filesystem::path& directory,
                                  const std::string& pattern, int local_rank, int rank,
                                  std::vector<TailedLog>& shown);

}  // namespace lockstep::inline internal
