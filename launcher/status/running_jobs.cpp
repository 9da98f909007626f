#include "launcher/status/running_jobs.h"

#include <algorithm>

#include <sys/stat.h>
#include <unistd.h>

#include "launcher/status/live_client.h"
#include "launcher/status/status_json.h"
#include "launcher/supervise/job_directory.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// Whoever else could put something there might pretend to be a job of this user.
bool is_own_directory(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return false;
  return S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
}

std::vector<RunningJob> find_sockets() {
  std::vector<RunningJob> jobs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_folder(), error)) {
    const auto pid = launcher_of_control_directory(entry.path().filename().string());
    if (!pid || !is_own_directory(entry.path())) continue;
    jobs.push_back({.pid = *pid, .socket = entry.path() / kControlSocketName});
  }
  return jobs;
}

bool has_id(const RunningJob& job, const std::string& id) {
  return job.status && job.status->is_named && job.status->job == id;
}

std::string names_of_jobs(const std::vector<const RunningJob*>& jobs) {
  std::string names;
  for (const RunningJob* job : jobs) {
    names += (names.empty() ? "" : ", ") + job->name;
    if (!job->status) names += concat(" (", job->trouble, ")");
  }
  return names;
}

}  // namespace

std::vector<RunningJob> running_jobs() {
  constexpr std::chrono::milliseconds kPatience{2'000};
  std::vector<RunningJob> jobs = find_sockets();
  std::vector<fs::path> sockets;
  for (const RunningJob& job : jobs) sockets.push_back(job.socket);
  const std::vector<LiveReply> replies =
      ask_all(sockets, {.method = "GET", .target = "/status"}, kPatience);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].trouble = replies[i].is_gone ? "" : replies[i].trouble;
    if (!replies[i].is_there) continue;
    jobs[i].status = parse_status(replies[i].answer.body);
    if (!jobs[i].status) jobs[i].trouble = "is of another version of Lockstep";
  }
  std::erase_if(jobs, [](const RunningJob& job) { return !job.status && job.trouble.empty(); });
  std::ranges::sort(jobs, [](const RunningJob& a, const RunningJob& b) {
    const double a_seconds = a.status ? a.status->seconds : 0;
    const double b_seconds = b.status ? b.status->seconds : 0;
    return a_seconds != b_seconds ? a_seconds > b_seconds : a.pid < b.pid;
  });
  name_jobs(jobs);
  return jobs;
}

void name_jobs(std::vector<RunningJob>& jobs) {
  for (RunningJob& job : jobs) {
    job.name = concat(job.pid);
    if (!job.status || !job.status->is_named) continue;
    const std::string& id = job.status->job;
    const auto is_same = [&](const RunningJob& other) {
      return has_id(other, id) || concat(other.pid) == id;
    };
    if (std::ranges::count_if(jobs, is_same) == 1) job.name = id;
  }
}

const RunningJob& find_job(const std::vector<RunningJob>& jobs, const std::string& text) {
  if (jobs.empty()) {
    throw UsageError(concat("no job of this user runs here",
                            text.empty() ? "" : concat(", so none is called ", text)));
  }
  std::vector<const RunningJob*> all;
  std::vector<const RunningJob*> found;
  for (const RunningJob& job : jobs) {
    all.push_back(&job);
    if (text.empty() || job.name == text) found.push_back(&job);
  }
  for (const RunningJob& job : jobs) {
    if (found.empty() && concat(job.pid) == text) found.push_back(&job);
  }
  if (found.size() == 1) return *found.front();
  if (text.empty()) {
    throw UsageError(concat(jobs.size(), " jobs run here; name one of them: ", names_of_jobs(all)));
  }
  for (const RunningJob& job : jobs) {
    if (job.status && job.status->job == text) found.push_back(&job);
  }
  if (found.size() == 1) return *found.front();
  if (!found.empty()) {
    throw UsageError(concat("job '", text, "' has ", found.size(),
                            " launchers here; name one of them: ", names_of_jobs(found)));
  }
  throw UsageError(concat("no job here is called '", text, "'; there are: ", names_of_jobs(all)));
}

}  // namespace lockstep::inline internal
