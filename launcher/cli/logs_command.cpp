#include <cstdio>
#include <filesystem>

#include "launcher/cli/command.h"
#include "launcher/cli/live_options.h"
#include "launcher/job/console.h"
#include "launcher/logs/log_reader.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/status/running_jobs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

struct LogSource {
  fs::path directory;
  /// Of the job where it runs.
  std::optional<RunningJob> job{};
};

bool is_job_directory(const fs::path& directory) {
  return !attempts_in(directory).empty();
}

// The directory itself, or the only one in it that is a job's.
fs::path job_directory_at(const fs::path& path) {
  if (is_job_directory(path)) return path;
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (is_job_directory(entry.path())) found.push_back(entry.path());
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    throw Error(concat("there are no logs of a job in ", path.string(),
                       ": no attempt_<n>/<local rank>/stdout.log"));
  }
  throw UsageError(concat("there are logs of ", found.size(), " jobs in ", path.string(),
                          "; name one of them, as in ", found.front().string()));
}

LogSource source_of_job(const RunningJob& job) {
  if (!job.status) {
    throw Error(concat("the launcher of job ", job.name, " ", job.trouble,
                       ", so its log directory is unknown; give the directory"));
  }
  if (job.status->log_directory.empty()) {
    throw Error(concat("job ", job.name,
                       " writes no logs; start it with --log-dir=DIR and --tee=3 (console and "
                       "files) or --redirects=3 (files)"));
  }
  return {job.status->log_directory, job};
}

LogSource find_source(const std::string& target) {
  std::vector<RunningJob> jobs = running_jobs();
  std::error_code error;
  const bool is_path = target.find('/') != std::string::npos;
  const bool is_directory = fs::is_directory(target, error);
  if (is_path && !is_directory) {
    throw Error(concat("there is no directory ", target,
                       "; give a --log-dir, or a job that lockstep ps lists"));
  }
  // A directory of a running job's name is given as ./name.
  const bool names_job =
      !is_path && std::ranges::find(jobs, target, &RunningJob::name) != jobs.end();
  if (!is_directory || names_job) return source_of_job(find_job(jobs, target));
  LogSource source{job_directory_at(target)};
  for (const RunningJob& job : jobs) {
    if (!job.status || job.status->log_directory.empty()) continue;
    if (fs::equivalent(job.status->log_directory, source.directory, error)) source.job = job;
  }
  return source;
}

// Which is not known any more of a generation that is over: that of the last counts.
int first_rank_of(const LogSource& source) {
  if (!source.job || source.job->status->workers.empty()) return 0;
  const WorkerStatus& worker = source.job->status->workers.front();
  return worker.rank - worker.local_rank;
}

LogReader::Sink console_of(const LogSource& source, bool names_generations) {
  const std::string pattern = env::text(env::kLogLinePrefix).value_or(kDefaultLinePrefix);
  LaunchOptions options;
  if (source.job) options.role = source.job->status->role;
  const int first_rank = first_rank_of(source);
  return {.prefix =
              [=](int local_rank) {
                return log_line_prefix(pattern, options, local_rank, first_rank + local_rank);
              },
          .lines =
              [](bool is_stderr, std::string_view lines) {
                std::FILE* const stream = is_stderr ? stderr : stdout;
                std::fwrite(lines.data(), 1, lines.size(), stream);
                std::fflush(stream);
              },
          .attempt =
              [names_generations](int attempt) {
                if (names_generations)
                  say(concat("generation ", attempt + 1, " (attempt_", attempt, ")"));
              }};
}

}  // namespace

int logs_command(const std::vector<std::string>& arguments) {
  const LogsOptions options = parse_logs_options(arguments);
  if (!options.help.empty()) {
    std::fputs(options.help.c_str(), stdout);
    return 0;
  }
  const LogSource source = find_source(options.target);
  const bool follows = options.follow && source.job;
  LogReader logs(source.directory, options.choice, console_of(source, follows));
  if (follows) {
    const UniqueFd launcher = find_process(source.job->pid);
    constexpr std::chrono::milliseconds kLookInterval{100};
    do {
      logs.look();
    } while (launcher.valid() && !wait_for_end(launcher, Deadline::after(kLookInterval)));
  }
  logs.finish();
  if (!logs.found_any()) {
    throw Error(concat("there are no such logs in ", source.directory.string(),
                       "; change --attempt or --local-rank"));
  }
  return 0;
}

}  // namespace lockstep::inline internal
