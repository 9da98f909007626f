#include "launcher/cli/live_help.h"

namespace lockstep::inline internal {
namespace {

HelpEntry argument(const char* name, const char* text) {
  return {.name = name, .text = text, .is_argument = true};
}

HelpEntry help_flag() {
  return {.name = "help", .letter = 'h', .text = "show this text"};
}

}  // namespace

CommandHelp ps_help() {
  return {
      .name = "lockstep ps",
      .usage = "[JOB] [options]",
      .description = "Lists the running jobs of this user on this machine.",
      .groups = {{.title = "",
                  .entries = {argument("JOB",
                                       "one job: its id (--rdzv-id), or the pid of its launcher"),
                              {.name = "workers",
                               .letter = 'w',
                               .text = "list the workers too: pid, time, processor time, memory"},
                              {.name = "json",
                               .text = "print an array of JSON objects, one per launcher, with "
                                       "the workers"},
                              help_flag()}}},
      .notes = R"(Columns:
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
  lockstep ps train --workers)"};
}

CommandHelp logs_help() {
  return {
      .name = "lockstep logs",
      .usage = "[JOB|DIRECTORY] [options]",
      .description =
          "Prints the log files of a job's workers on this machine, each line prefixed with its "
          "local rank: stdout\n"
          "to stdout, stderr to stderr. The job needs --log-dir=DIR with --redirects=3 (files) "
          "or --tee=3 (files\n"
          "and console).",
      .groups = {{.title = "",
                  .entries = {argument("JOB", "as in lockstep ps; optional if one job runs"),
                              argument("DIRECTORY",
                                       "a --log-dir with one job, or the job's folder "
                                       "<id>_<random> in it; also of ended jobs"),
                              {.name = "follow",
                               .letter = 'f',
                               .text = "print new lines, across restarts, until the job ends"},
                              {.name = "lines",
                               .letter = 'n',
                               .value = "N",
                               .text = "start with the last N lines of each file (default all)"},
                              {.name = "local-rank",
                               .value = "LIST",
                               .text = "only these workers, e.g. 0,2"},
                              {.name = "attempt",
                               .value = "N",
                               .text = "only attempt_<N>, which is generation N + 1 (default: "
                                       "the newest)"},
                              help_flag()}}},
      .notes = R"(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE sets the prefix, as for --tee.

Exit code: 0; 1 if there are no logs; 2 if JOB does not run.

Examples:
  lockstep run --standalone --nproc-per-node=2 --rdzv-id=train --log-dir=logs --redirects=3 ./train
  lockstep logs train -f --lines=20
  lockstep logs logs --local-rank=0)"};
}

CommandHelp scale_help() {
  return {
      .name = "lockstep scale",
      .usage = "[JOB] N [options]",
      .description =
          "Sets the number of workers of a job on this machine to N, and returns when they run. "
          "A new generation\n"
          "starts, with new ranks and a new WORLD_SIZE; RESTARTS does not change. Workers with "
          "Accelerator,\n"
          "Trainer or ResilientTraining keep their processes and their state; all others are "
          "restarted and resume\n"
          "from their last snapshot.",
      .groups = {{.title = "",
                  .entries = {argument("JOB", "as in lockstep ps; optional if one job runs"),
                              argument("N",
                                       "workers on this machine, from 1; may exceed the number "
                                       "of processors"),
                              help_flag()}}},
      .notes =
          R"(Exit code: 0 when the workers run; 1 if the job cannot be scaled; 2 for a wrong N, or if JOB does not
run.

Examples:
  lockstep scale 4
  lockstep scale train 4)"};
}

CommandHelp stop_help() {
  return {
      .name = "lockstep stop",
      .usage = "[JOB] [options]",
      .description =
          "Stops a job on all its machines, and returns when the launcher of this machine has "
          "ended. Workers\n"
          "receive SIGTERM, and SIGKILL after the grace period (--shutdown-timeout). Each "
          "launcher ends with exit\n"
          "code 143 and prints who stopped the job. Interrupting this command does not cancel "
          "the stop.",
      .groups = {{.title = "",
                  .entries = {argument("JOB", "as in lockstep ps; optional if one job runs"),
                              {.name = "machine-only",
                               .text = "only this machine leaves; the others continue, or wait "
                                       "for a replacement if fewer than\n"
                                       "MIN are left (--rdzv-conf=join_timeout). With "
                                       "--node-rank the job ends"},
                              {.name = "now",
                               .text = "SIGKILL at once, exit code 137; also for a job that is "
                                       "already stopping"},
                              help_flag()}}},
      .notes =
          R"(Exit code: 0 when the job has ended; 1 if it cannot be stopped; 2 if JOB does not run.

Examples:
  lockstep stop
  lockstep stop train --now)"};
}

}  // namespace lockstep::inline internal
