#include <cstdio>

#include "launcher/cli/command.h"
#include "launcher/cli/job_table.h"
#include "launcher/cli/live_options.h"
#include "launcher/status/running_jobs.h"
#include "launcher/status/status_json.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kPsHelp = R"(Usage: lockstep ps [JOB] [options]

Lists the running jobs of this user on this machine.

  JOB            one job: its id (--rdzv-id), or the pid of its launcher
  -w, --workers  list the workers too: pid, time, processor time, memory
  --json         print an array of JSON objects, one per launcher, with the workers
  -h, --help     show this text

Columns:
  JOB       name for the other commands: the id, or the launcher's pid if the id is not unique
  STATE     gathering (waits for machines), running, stopping, succeeded or failed; "!" marks a
            problem, which the next line explains
  MACHINE   rank of this machine, and number of machines
  WORKERS   workers on this machine
  WORLD     workers on all machines
  RESTARTS  restarts after failures, and the limit (--max-restarts)
  SINCE     time since the launcher started

A launcher that does not answer within 2 s is stopped or hangs. lockstep ps finds launchers in TMPDIR
(default /tmp): use the TMPDIR of the launcher.

Exit code: 0, also if no job runs; 2 if JOB does not run.

Examples:
  lockstep ps
  lockstep ps train --workers
)";

std::string json_of(const std::vector<RunningJob>& jobs) {
  std::string text;
  for (const RunningJob& job : jobs) {
    text += concat(text.empty() ? "" : ",\n ",
                   job.status ? to_json(*job.status) : trouble_json(job.pid, job.trouble));
  }
  return concat("[", text, "]\n");
}

}  // namespace

int ps_command(const std::vector<std::string>& arguments) {
  const PsOptions options = parse_ps_options(arguments);
  if (options.help) {
    std::fputs(kPsHelp, stdout);
    return 0;
  }
  std::vector<RunningJob> jobs = running_jobs();
  if (!options.job.empty()) jobs = {RunningJob(find_job(jobs, options.job))};
  if (options.json) {
    std::fputs(json_of(jobs).c_str(), stdout);
  } else if (jobs.empty()) {
    std::puts("no job of this user runs here");
  } else {
    std::fputs(job_table(jobs, options.workers).c_str(), stdout);
  }
  return 0;
}

}  // namespace lockstep::inline internal
