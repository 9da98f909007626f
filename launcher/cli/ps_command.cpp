#include <cstdio>

#include "launcher/cli/command.h"
#include "launcher/cli/job_table.h"
#include "launcher/cli/live_options.h"
#include "launcher/status/running_jobs.h"
#include "launcher/status/status_json.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kPsHelp = R"(Usage: lockstep ps [JOB] [flags]

Shows the jobs that this user runs on this machine.

  JOB            only this one: the id given by --rdzv-id, or the pid of its launcher
  -w, --workers  each worker too, with the processor time and the memory of its process
  --json         for machines: an array of what the launchers answer, with the workers;
                 of one that does not, its pid and the trouble
  -h, --help     this text

What the columns mean:
  JOB       by which other commands know it; its id, or, where it has none or another job has the
            same, the pid of its launcher
  STATE     gathering (machines), running, stopping (its workers), succeeded or failed; with a ! when
            something is wrong, which the line below says
  MACHINE   place of this machine among those of the job
  WORKERS   on this machine; WORLD: on all
  RESTARTS  after failures, of those that --max-restarts allows

A launcher that has answered nothing within 2 s is stopped, or hangs.
Launchers are found by the sockets that they make in TMPDIR (or /tmp): where one was started with
another TMPDIR, give this command the same.

Exit code: 0, also when nothing runs; 2 when JOB does not run.
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
