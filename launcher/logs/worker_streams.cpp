#include "launcher/logs/worker_streams.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "launcher/logs/worker_logs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

UniqueFd open_log(const fs::path& file) {
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) throw SystemError(concat("write the log ", file.string()), errno);
  return fd;
}

}  // namespace

WorkerStreams open_worker_streams(const LaunchOptions& options, const fs::path& directory,
                                  const std::string& pattern, int local_rank, int rank,
                                  std::vector<TailedLog>& shown) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw SystemError(concat("make the directory ", directory.string()), error.value());
  const auto open_stream = [&](const StreamPlan& plan, const char* name, int console_fd) {
    const fs::path file = directory / name;
    if (plan.target == StreamPlan::Target::kConsole) return UniqueFd();
    if (plan.target == StreamPlan::Target::kNowhere) return open_log("/dev/null");
    if (plan.shown) {
      shown.push_back({file, log_line_prefix(pattern, options, local_rank, rank), console_fd});
      add_filtered_copy(options, shown);
    }
    return open_log(file);
  };
  const WorkerLogPlan plan = plan_worker_logs(options, local_rank);
  return {open_stream(plan.out, "stdout.log", STDOUT_FILENO),
          open_stream(plan.err, "stderr.log", STDERR_FILENO)};
}

}  // namespace lockstep::inline internal
