#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "diagnose/verdict/attempt_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/logs/log_tail.h"

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

/// Of the log that was added last to those `shown` on stdout or stderr: adds what is copied of its
/// lines to filtered_stdout.log or filtered_stderr.log of the attempt, which it makes.
/// Errors: SystemError.
void add_filtered_copy(const LaunchOptions& options, std::vector<TailedLog>& shown);

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

}  // namespace lockstep::inline internal
