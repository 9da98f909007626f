#include "lockstep/launch/attempt.h"

#include <optional>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/explain_crashes.h"
#include "lockstep/launch/log_tail.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/launch/worker_command.h"
#include "lockstep/launch/worker_logs.h"
#include "lockstep/launch/worker_streams.h"
#include "lockstep/os/machine.h"
#include "lockstep/os/out_of_memory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

int attempt_of(std::uint64_t generation) {
  return static_cast<int>(generation) - 1;
}

class Attempt {
 public:
  Attempt(const JobOnThisMachine& job, std::uint64_t generation, const NodePlacement& placement,
          UniqueFd store);

  AttemptOutcome run(const AttemptWatch& watch,
                     const std::function<void(const WorkerExit&)>& on_failure);

 private:
  fs::path directory_of(int local_rank) const {
    return worker_directory(job_.directory, facts_.attempt, local_rank);
  }
  Worker make_worker(int local_rank, const WorkerStreams& streams) const;
  void read_error(WorkerExit& exit) const;
  void finish_tail(LogTail& tail, const AttemptWatch& watch, AttemptOutcome& outcome) const;

  const JobOnThisMachine& job_;
  const std::uint64_t generation_;
  UniqueFd store_;
  AttemptFacts facts_;
};

Attempt::Attempt(const JobOnThisMachine& job, std::uint64_t generation,
                 const NodePlacement& placement, UniqueFd store)
    : job_(job),
      generation_(generation),
      store_(placement.node_rank == 0 ? std::move(store) : UniqueFd()),
      facts_{.attempt = attempt_of(generation),
             .placement = placement,
             .allowed_cpus = usable_cpu_count(),
             .limited_time = usable_cpu_count() < allowed_cpu_count(),
             .processors = job.processors,
             .job_mark = job.job_mark} {
  if (store_.valid()) facts_.store_listen_fd = store_.get();
}

AttemptOutcome Attempt::run(const AttemptWatch& watch,
                            const std::function<void(const WorkerExit&)>& on_failure) {
  const LaunchOptions& options = job_.options;
  std::vector<TailedLog> shown;
  std::vector<WorkerStreams> streams;
  for (int local_rank = 0; local_rank < options.worker_count; ++local_rank) {
    streams.push_back(open_worker_streams(options, directory_of(local_rank), job_.line_pattern,
                                          local_rank, facts_.placement.first_rank + local_rank,
                                          shown));
  }
  std::optional<LogTail> tail;
  if (!shown.empty()) tail.emplace(shown);
  watch.events.assigned(facts_.attempt, facts_.placement);
  std::vector<Worker> workers;
  for (int local_rank = 0; local_rank < options.worker_count; ++local_rank) {
    workers.push_back(make_worker(local_rank, streams[static_cast<std::size_t>(local_rank)]));
  }

  const OutOfMemoryKills memory_kills;
  Supervisor supervisor(watch.signals, watch.guard, watch.rendezvous, watch.board,
                        options.shutdown_timeout, options.notify_signals);
  const auto on_start = [&](const WorkerExit& worker) { watch.events.started(worker); };
  const auto on_exit = [&](WorkerExit& exit) {
    // Connections to a store whose server has ended are refused, rather than never answered.
    if (exit.rank == 0) store_.reset();
    if (!exit.failed()) return;
    exit.memory_shortage = memory_kills.since().value_or("");
    read_error(exit);
    on_failure(exit);
  };
  watch.board.round_begins(generation_);
  AttemptOutcome outcome =
      supervisor.run(workers, generation_, on_start, watch.on_started, on_exit);
  explain_crashes(outcome, attempt_directory(job_, generation_));
  if (tail) finish_tail(*tail, watch, outcome);
  return outcome;
}

Worker Attempt::make_worker(int local_rank, const WorkerStreams& streams) const {
  const LaunchOptions& options = job_.options;
  const std::string error_file = (directory_of(local_rank) / "error.json").string();
  Worker worker{.rank = facts_.placement.first_rank + local_rank, .local_rank = local_rank};
  worker.spawn.path = job_.executable;
  worker.spawn.cpus = processors_of(job_.processors, local_rank);
  const std::string python = env::text(env::kPythonExec).value_or("python3");
  worker.spawn.arguments = worker_command(options.program, python, local_rank);
  worker.spawn.environment =
      worker_environment(options, facts_, local_rank, error_file, job_.inherited_environment);
  worker.spawn.control_group = job_.control_group;
  worker.spawn.stdout_fd = streams.out.get();
  worker.spawn.stderr_fd = streams.err.get();
  if (worker.rank == 0 && facts_.store_listen_fd) {
    worker.spawn.inherited_fds = {*facts_.store_listen_fd};
  }
  return worker;
}

void Attempt::read_error(WorkerExit& exit) const {
  const ErrorReport report = read_error_file(directory_of(exit.local_rank) / "error.json");
  exit.error_message = report.message;
  exit.error_code = report.exit_code;
  exit.crash = report.crash;
}

void Attempt::finish_tail(LogTail& tail, const AttemptWatch& watch, AttemptOutcome& outcome) const {
  // Longer than a slow terminal needs; the logs hold everything.
  constexpr std::chrono::milliseconds kSlowConsole{30'000};
  const Deadline deadline = Deadline::after(kSlowConsole);
  const LogTail::Result result = tail.finish(
      deadline, watch.signals, [&] { watch.rendezvous.wait(watch.signals.fd(), deadline); });
  if (result.complete) return;
  if (outcome.stop_signal == 0) outcome.stop_signal = result.stop_signal;
  say(concat("the console did not take all of the workers' output; it is in ",
             job_.directory.string()));
}

}  // namespace

AttemptOutcome run_attempt(const JobOnThisMachine& job, std::uint64_t generation,
                           const NodePlacement& placement, UniqueFd store,
                           const AttemptWatch& watch,
                           const std::function<void(const WorkerExit&)>& on_failure) {
  return Attempt(job, generation, placement, std::move(store)).run(watch, on_failure);
}

fs::path attempt_directory(const JobOnThisMachine& job, std::uint64_t generation) {
  return worker_directory(job.directory, attempt_of(generation), 0).parent_path();
}

}  // namespace lockstep
