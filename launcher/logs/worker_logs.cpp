#include "launcher/logs/worker_logs.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "launcher/job/worker_command.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

StreamPlan plan_stream(bool redirected, bool teed, bool on_console, bool has_logs) {
  if (!redirected && !teed) {
    return {on_console ? StreamPlan::Target::kConsole : StreamPlan::Target::kNowhere};
  }
  if (!has_logs) return {StreamPlan::Target::kNowhere};
  return {StreamPlan::Target::kFile, teed && on_console};
}

UniqueFd open_log(const std::filesystem::path& file) {
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) throw SystemError(concat("write the log ", file.string()), errno);
  return fd;
}

// Of the log that was added last to `shown`: copies the lines that the options select to a file of
// the generation, which it makes.
void add_filtered_copy(const LaunchOptions& options, std::vector<TailedLog>& shown) {
  TailedLog log = shown.back();
  const bool is_out = log.console_fd == STDOUT_FILENO;
  log.filter = is_out ? options.copied_out : options.copied_err;
  if (log.filter.selects_none()) return;
  const auto directory = log.file.parent_path().parent_path();
  log.copy = directory / (is_out ? "filtered_stdout.log" : "filtered_stderr.log");
  open_log(log.copy);
  shown.push_back(std::move(log));
}

}  // namespace

WorkerLogPlan plan_worker_logs(const LaunchOptions& options, int local_rank) {
  const Streams redirected = options.redirects.of(local_rank);
  const Streams teed = options.tee.of(local_rank);
  const auto& ranks = options.console_ranks;
  const bool on_console =
      ranks.empty() || std::find(ranks.begin(), ranks.end(), local_rank) != ranks.end();
  const bool has_logs = options.log_directory != "/dev/null";
  return {plan_stream(redirected.out, teed.out, on_console, has_logs),
          plan_stream(redirected.err, teed.err, on_console, has_logs)};
}

bool writes_logs(const LaunchOptions& options) {
  for (int local_rank = 0; local_rank < options.worker_count; ++local_rank) {
    const WorkerLogPlan plan = plan_worker_logs(options, local_rank);
    if (plan.out.target == StreamPlan::Target::kFile) return true;
    if (plan.err.target == StreamPlan::Target::kFile) return true;
  }
  return false;
}

std::filesystem::path worker_directory(const std::filesystem::path& job, int attempt,
                                       int local_rank) {
  return job / concat("attempt_", attempt) / concat(local_rank);
}

std::filesystem::path error_file_of(const WorkerExit& worker) {
  return worker.directory / "error.json";
}

std::string log_line_prefix(const std::string& pattern, const LaunchOptions& options,
                            int local_rank, int rank) {
  return substitute(
      pattern,
      {{"role_name", options.role}, {"local_rank", concat(local_rank)}, {"rank", concat(rank)}});
}

WorkerStreams open_worker_streams(const LaunchOptions& options,
                                  const std::filesystem::path& directory,
                                  const std::string& pattern, int local_rank, int rank,
                                  std::vector<TailedLog>& shown) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw SystemError(concat("make the directory ", directory.string()), error.value());
  const auto open_stream = [&](const StreamPlan& plan, const char* name, int console_fd) {
    const std::filesystem::path file = directory / name;
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
