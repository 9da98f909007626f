#include <csignal>
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
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kAnswerPatience{5'000};

void ask_to_stop(const RunningJob& job, bool now) {
  const LiveReply reply = ask(
      job.socket, stop_request({.by = concat(user_name(), " on ", host_name()), .at_once = now}),
      kAnswerPatience);
  if (reply.is_gone) return;  // It ends already.
  if (!reply.is_there) {
    throw Error(concat("the launcher of job ", job.name, " (pid ", job.pid, ") ", reply.trouble,
                       ": it is stopped, or hangs; kill -CONT ", job.pid, " continues it, kill ",
                       job.pid, " ends it on this machine"));
  }
  if (reply.answer.status != 202) {
    const std::string& why = reply.answer.body;
    throw Error(concat("job ", job.name, " is not stopped: ", why.substr(0, why.find('\n')),
                       "; lockstep stop --machine-only ends it here"));
  }
}

// Whom the launcher waits for, in a line.
std::string what_is_left(const RunningJob& job) {
  const LiveReply reply =
      ask(job.socket, {.method = "GET", .target = "/status"}, std::chrono::milliseconds(1'000));
  if (reply.is_gone) return "the workers here have ended; the launcher notifies the other machines";
  const auto status = reply.is_there ? parse_status(reply.answer.body) : std::nullopt;
  if (!status) return "the launcher does not answer";
  std::string workers;
  for (const WorkerStatus& worker : status->workers) {
    if (worker.state != WorkerStatus::State::kRunning) continue;
    workers +=
        concat(workers.empty() ? "rank " : ", rank ", worker.rank, " (pid ", worker.pid, ")");
  }
  return workers.empty() ? "the workers here have ended" : concat("waiting for ", workers);
}

void wait_with_progress(const RunningJob& job, const UniqueFd& launcher) {
  std::string said;
  while (!wait_for_end(launcher, Deadline::after(std::chrono::milliseconds(2'000)))) {
    const std::string left = what_is_left(job);
    if (left != said) say(left);
    said = left;
  }
}

}  // namespace

int stop_command(const std::vector<std::string>& arguments) {
  const StopOptions options = parse_stop_options(arguments);
  if (!options.help.empty()) {
    std::fputs(options.help.c_str(), stdout);
    return 0;
  }
  const std::vector<RunningJob> jobs = running_jobs();
  const RunningJob& job = find_job(jobs, options.job);
  // From before it is told to, so that it is this very process, whose number may be given again.
  const UniqueFd launcher = find_process(job.pid);
  if (launcher.valid()) {
    say(concat("stopping job ", job.name, " (launcher ", job.pid, ")",
               options.machine_only ? " on this machine" : ""));
    if (options.machine_only) {
      signal_process(launcher, SIGTERM);
    } else {
      ask_to_stop(job, options.now);
    }
    wait_with_progress(job, launcher);
  }
  say(concat("job ", job.name, " has ended", options.machine_only ? " on this machine" : ""));
  return 0;
}

}  // namespace lockstep::inline internal
