#include <cstdio>

#include "launcher/cli/command.h"
#include "launcher/cli/live_options.h"
#include "launcher/job/console.h"
#include "launcher/status/live_answers.h"
#include "launcher/status/live_client.h"
#include "launcher/status/running_jobs.h"
#include "launcher/status/status_json.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kScalePatience{5'000};

std::optional<JobStatus> status_of(const RunningJob& job) {
  const LiveReply reply = ask(job.socket, {.method = "GET", .target = "/status"}, kScalePatience);
  return reply.is_there ? parse_status(reply.answer.body) : std::nullopt;
}

void ask_to_scale(const RunningJob& job, int worker_count) {
  const std::string by = concat(user_name(), " on ", host_name());
  const LiveReply reply = ask(job.socket, scale_request(worker_count, by), kScalePatience);
  if (!reply.is_there) {
    throw Error(concat("the launcher of job ", job.name, " (pid ", job.pid, ") ", reply.trouble));
  }
  if (reply.answer.status == 202) return;
  const std::string& why = reply.answer.body;
  throw Error(concat("job ", job.name, " is not scaled: ", why.substr(0, why.find('\n'))));
}

// Until the workers of a later generation run, as many as were asked for.
void wait_for_workers(const RunningJob& job, const UniqueFd& launcher, int worker_count) {
  constexpr std::chrono::milliseconds kLookInterval{50};
  const std::uint64_t before = job.status->generation;
  bool has_said = false;
  std::optional<Deadline> runs_otherwise_until;
  do {
    const auto status = status_of(job);
    if (!status) continue;
    const bool runs = status->state == JobStatus::State::kRunning && status->generation > before &&
                      status->worker_count == worker_count;
    if (runs) {
      say(concat("job ", job.name, " runs as generation ", status->generation, " with ",
                 count_text(worker_count, "worker"), " here, ", status->world_size, " in all"));
      return;
    }
    // For a moment it may be the generation that had just begun.
    const bool runs_otherwise =
        status->state == JobStatus::State::kRunning && status->generation > before;
    if (!runs_otherwise) runs_otherwise_until.reset();
    if (runs_otherwise && !runs_otherwise_until) {
      runs_otherwise_until = Deadline::after(kScalePatience);
    }
    if (runs_otherwise && runs_otherwise_until->passed()) {
      throw Error(concat("job ", job.name, " runs with ",
                         count_text(status->worker_count, "worker"),
                         " here: a later request changed it"));
    }
    if (!status->missing.empty() && !has_said) say(concat("waiting: ", status->missing));
    has_said = has_said || !status->missing.empty();
  } while (!wait_for_end(launcher, Deadline::after(kLookInterval)));
  throw Error(concat("job ", job.name, " has ended before its new workers were seen to run"));
}

}  // namespace

int scale_command(const std::vector<std::string>& arguments) {
  const ScaleOptions options = parse_scale_options(arguments);
  if (!options.help.empty()) {
    std::fputs(options.help.c_str(), stdout);
    return 0;
  }
  const std::vector<RunningJob> jobs = running_jobs();
  const RunningJob& job = find_job(jobs, options.job);
  if (!job.status) {
    throw Error(concat("the launcher of job ", job.name, " (pid ", job.pid, ") ", job.trouble));
  }
  const UniqueFd launcher = find_process(job.pid);
  ask_to_scale(job, options.worker_count);
  const int processors = allowed_cpu_count();
  if (options.worker_count > processors) {
    say(concat("note: ", count_text(options.worker_count, "worker"), " on ",
               count_text(processors, "processor")));
  }
  wait_for_workers(job, launcher, options.worker_count);
  return 0;
}

}  // namespace lockstep::inline internal
