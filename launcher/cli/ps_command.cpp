#include <cstdio>

#include "launcher/cli/command.h"
#include "launcher/cli/job_table.h"
#include "launcher/cli/live_options.h"
#include "launcher/status/running_jobs.h"
#include "launcher/status/status_json.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

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
  if (!options.help.empty()) {
    std::fputs(options.help.c_str(), stdout);
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
