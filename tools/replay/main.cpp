// The program `lockstep-replay`, which `lockstep replay` becomes.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/record/internal/replay_request.h"
#include "tools/parse_flags.h"
#include "tools/replay/replay_plan.h"

namespace lockstep::inline internal {
namespace {

// Without what sets flags of `lockstep run`, which are those of the command line.
std::vector<std::string> environment_without_flags() {
  std::vector<std::string> environment = env::everything();
  std::erase_if(environment, [](const std::string& setting) {
    return setting.starts_with("PET_") ||
           setting.starts_with(concat(env::kHealthCheckPort.name, "="));
  });
  return environment;
}

// Runs a program, and sends it the signals that stop this one.
void run_until_it_ends(const std::vector<std::string>& words) {
  SignalFd signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  // The verdict alone is on stdout.
  const pid_t pid = spawn_process({.path = words.front(),
                                   .arguments = words,
                                   .environment = environment_without_flags(),
                                   .stdout_fd = STDERR_FILENO});
  const UniqueFd process = open_process(pid);
  pollfd ready[] = {{process.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  while (ready[0].revents == 0) {
    ::poll(ready, std::size(ready), -1);
    while (const auto signal = signals.next()) signal_process(process, *signal);
  }
  reap_child(pid);
}

void run_program(const ReplayPlan& plan, const std::filesystem::path& folder, int ranks) {
  const std::string request = to_text({.step = plan.step,
                                       .directory = plan.run.directory,
                                       .folder = folder.string(),
                                       .logical_shards = plan.run.logical_shards});
  // No thread has been started.
  if (::setenv(env::kReplay.name, request.c_str(), 1) != 0) throw SystemError("setenv", errno);
  std::vector<std::string> words = {program_beside("lockstep", "replay"),
                                    "run",
                                    "--standalone",
                                    concat("--nproc-per-node=", ranks),
                                    "--role=replay",
                                    "--rdzv-id=replay",
                                    "--no-python",
                                    plan.run.program.path};
  const auto& arguments = plan.run.program.arguments;
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::filesystem::current_path(plan.run.program.working_directory);
  // A failure shows in what it has not logged.
  run_until_it_ends(words);
}

int replay(const std::vector<std::string>& arguments) {
  std::string run;
  int step = 0;
  int ranks = 1;
  CLI::App app(
      "Replays a step of a training run on any number of ranks, and compares the bits of all\n"
      "parameters and buffers with the run's log of hashes. Starts the program with the run's\n"
      "command line from the newest snapshot before the step, else from step 0, and stops it\n"
      "after the step. Does not change the run's directory.",
      "lockstep replay");
  app.add_option("RUN", run,
                 "directory of a Trainer's run, with logical_shards and log_hashes_every")
      ->required();
  add_integer(app, "--step", step, 1, "the step, numbered from 1 as in metrics.jsonl")->required();
  add_integer(app, "--nproc-per-node", ranks, 1, "number of ranks (default 1)");
  app.footer(
      "Set the environment variables that the program reads as in the run. Files that the program\n"
      "writes outside the run's directory are written again.\n\n"
      "Exit code: 0: the bits agree; 1: they differ, or the program failed; 2: wrong command line, "
      "or\n"
      "the run has no log of that step.\n\n"
      "Example:\n"
      "  lockstep replay runs/digits --step=120 --nproc-per-node=2");
  if (!parse_flags(app, arguments)) return 0;
  const std::filesystem::path directory = std::filesystem::absolute(run);
  const ReplayPlan plan = plan_replay(directory, step);
  const TemporaryDirectory temporary(temporary_folder(), "lockstep-replay-");
  const std::filesystem::path folder = temporary.path() / "run";
  make_replay_folder(plan, directory, folder);
  run_program(plan, folder, ranks);
  const bool has_log = std::filesystem::exists(folder / "hashes.jsonl");
  const ReplayVerdict verdict =
      judge_replay(plan, has_log ? read_hashes(folder) : LoggedHashes{}, ranks);
  std::printf("%s\n", verdict.line.c_str());
  return verdict.agrees ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::replay);
}
