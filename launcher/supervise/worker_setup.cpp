#include "launcher/supervise/worker_setup.h"

#include <algorithm>

#include "diagnose/verdict/error_file.h"
#include "launcher/job/console.h"
#include "launcher/job/worker_command.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

bool sets(const std::string& line, const env::Variable& variable) {
  return line.starts_with(concat(variable.name, "="));
}

}  // namespace

WorkerSetup::WorkerSetup(JobOnThisMachine& job, EventLog& events)
    : job_(job),
      events_(events),
      facts_{.allowed_cpus = usable_cpu_count(),
             .limited_time = usable_cpu_count() < allowed_cpu_count(),
             .job_mark = job.job_mark} {}

std::vector<WorkerPlan> WorkerSetup::begin(Generation generation, const std::set<int>& kept,
                                           int standbys) {
  facts_.generation = generation.number;
  facts_.placement = generation.placement;
  facts_.processors = job_.processors;
  store_ = generation.placement.node_rank == 0 ? std::move(generation.store) : UniqueFd();
  facts_.store_listen_fd.reset();
  if (store_.valid()) facts_.store_listen_fd = store_.get();
  std::vector<WorkerPlan> workers;
  streams_.clear();
  std::vector<TailedLog> logs;
  for (int local_rank = 0; local_rank < job_.options.worker_count; ++local_rank) {
    WorkerPlan worker = make_worker(local_rank, local_rank);
    if (kept.contains(local_rank) || standbys-- > 0) {
      worker.place = place_of(worker, generation.number);
      if (worker.rank == 0) worker.place_fd = store_.get();
    } else {
      give_streams(worker, logs);
    }
    workers.push_back(std::move(worker));
  }
  next_standby_ = job_.options.worker_count;
  show(logs);
  events_.assigned(facts_.generation, facts_.placement);
  memory_kills_.emplace();
  return workers;
}

void WorkerSetup::read_error(WorkerExit& exit) const {
  exit.memory_shortage = memory_kills_->since().value_or("");
  const ErrorReport report = read_error_file(error_file_of(exit));
  exit.error_message = report.message;
  exit.error_kind = report.kind;
  exit.error_code = report.exit_code;
  exit.crash = report.crash;
}

void WorkerSetup::ended(const WorkerExit& exit) {
  for (Shown& shown : shown_) {
    if (shown.running.erase(exit.directory) > 0 && shown.running.empty()) shown.tail.request_end();
  }
  shown_.remove_if([](const Shown& shown) { return shown.running.empty() && shown.tail.ended(); });
  // Connections to a store whose server has ended are refused, rather than never answered.
  if (exit.rank == 0) store_.reset();
}

WorkerPlan WorkerSetup::standby() {
  std::vector<TailedLog> logs;
  WorkerPlan worker = make_worker(0, next_standby_++);
  worker.rank = worker.local_rank = -1;
  worker.spawn.cpus.clear();
  std::erase_if(worker.spawn.environment, [](const std::string& line) {
    return sets(line, env::kRank) || sets(line, env::kLocalRank) || sets(line, env::kStoreListenFd);
  });
  worker.spawn.environment.push_back(concat(env::kStandby.name, "=1"));
  give_streams(worker, logs);
  show(logs);
  return worker;
}

WorkerPlan WorkerSetup::with_streams(WorkerPlan plan) {
  if (plan.has_streams) return plan;
  std::vector<TailedLog> logs;
  give_streams(plan, logs);
  show(logs);
  return plan;
}

// `number`: of its folder among those of the generation.
WorkerPlan WorkerSetup::make_worker(int local_rank, int number) const {
  const LaunchOptions& options = job_.options;
  WorkerPlan worker{
      .rank = facts_.placement.first_rank + local_rank,
      .local_rank = local_rank,
      .directory = worker_directory(job_.directory, torchrun_attempt(facts_.generation), number)};
  worker.spawn.path = job_.executable;
  worker.spawn.cpus = processors_of(job_.processors, local_rank);
  const std::string python = env::text(env::kPythonExec).value_or("python3");
  worker.spawn.arguments = worker_command(options.program, python, local_rank);
  worker.spawn.environment =
      worker_environment(options, facts_, local_rank, (worker.directory / "error.json").string(),
                         job_.inherited_environment);
  if (job_.state_memory.valid()) {
    const int memory = job_.state_memory.get();
    worker.spawn.inherited_fds.push_back(memory);
    worker.spawn.environment.push_back(concat(env::kStateMemoryFd.name, "=", memory));
  }
  if (job_.steps_made > 0) {
    worker.spawn.environment.push_back(concat(kStepsMade.name, "=", job_.steps_made));
  }
  worker.spawn.control_group = job_.control_group;
  if (worker.rank == 0 && facts_.store_listen_fd) {
    worker.spawn.inherited_fds.push_back(*facts_.store_listen_fd);
  }
  return worker;
}

void WorkerSetup::give_streams(WorkerPlan& worker, std::vector<TailedLog>& shown) {
  streams_.push_back(open_worker_streams(job_.options, worker.directory, job_.line_pattern,
                                         worker.local_rank, worker.rank, shown));
  worker.spawn.stdout_fd = streams_.back().out.get();
  worker.spawn.stderr_fd = streams_.back().err.get();
  worker.has_streams = true;
}

void WorkerSetup::show(const std::vector<TailedLog>& logs) {
  if (logs.empty()) return;
  Shown& shown = shown_.emplace_back(LogTail(logs));
  for (const TailedLog& log : logs) shown.running.insert(log.file.parent_path());
}

// What every program has from the launcher's environment it has already, and what it was started
// with stays: its error file and the memory.
Place WorkerSetup::place_of(const WorkerPlan& worker, std::uint64_t generation) const {
  Place place{.generation = generation};
  for (const std::string& line : worker.spawn.environment) {
    const bool stays = sets(line, env::kErrorFile) || sets(line, env::kStateMemoryFd);
    const auto is_known = [&](const env::Variable* variable) { return sets(line, *variable); };
    if (!stays && (std::ranges::any_of(env::all(), is_known) ||
                   std::ranges::count(job_.inherited_environment, line) == 0)) {
      place.environment.push_back(line);
    }
  }
  return place;
}

void WorkerSetup::finish_output(GenerationOutcome& outcome, JobRendezvous& rendezvous,
                                SignalFd& signals) {
  // Longer than a slow terminal needs; the logs hold everything.
  constexpr std::chrono::milliseconds kSlowConsole{30'000};
  const Deadline deadline = Deadline::after(kSlowConsole);
  bool complete = true;
  for (Shown& shown : shown_) {
    const LogTail::Result result =
        shown.tail.finish(deadline, signals, [&] { rendezvous.wait(signals.fd(), deadline); });
    complete = complete && result.complete;
    if (outcome.stop_signal == 0) outcome.stop_signal = result.stop_signal;
  }
  if (complete) return;
  say(concat("the console was too slow for the workers' output; all of it is in ",
             job_.directory.string()));
}

}  // namespace lockstep::inline internal
