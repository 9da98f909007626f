#include "launcher/supervise/job_board.h"

#include <algorithm>

#include <unistd.h>

#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/process_usage.h"

namespace lockstep::inline internal {
namespace {

using Phase = RendezvousState::Phase;

double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

}  // namespace

void JobBoard::generation_begins(std::uint64_t generation) {
  generation_ = generation;
  is_stopping_ = false;
  is_between_generations_ = false;
  workers_.clear();
}

void JobBoard::generation_continues(std::uint64_t generation) {
  generation_ = generation;
  is_between_generations_ = false;
  std::erase_if(workers_, [](const Worker& worker) {
    return worker.status.state != WorkerStatus::State::kRunning;
  });
}

void JobBoard::placed(const WorkerExit& worker) {
  for (Worker& known : workers_) {
    if (known.status.pid != worker.pid) continue;
    known.status.rank = worker.rank;
    known.status.local_rank = worker.local_rank;
  }
}

void JobBoard::started(const WorkerExit& worker) {
  workers_.push_back(
      {.status = {.rank = worker.rank, .local_rank = worker.local_rank, .pid = worker.pid},
       .start = Clock::now()});
}

void JobBoard::ended(const WorkerExit& exit) {
  for (Worker& worker : workers_) {
    if (worker.status.pid != exit.pid) continue;
    worker.status.seconds = seconds_since(worker.start);
    worker.status.state = !exit.failed()      ? WorkerStatus::State::kSucceeded
                          : exit.told_to_stop ? WorkerStatus::State::kStopped
                                              : WorkerStatus::State::kFailed;
  }
}

void JobBoard::given_up(const WorkerExit& stuck) {
  for (Worker& worker : workers_) {
    if (worker.status.pid == stuck.pid) worker.status.state = WorkerStatus::State::kStuck;
  }
}

bool JobBoard::any_running() const {
  return std::ranges::any_of(workers_, [](const Worker& worker) {
    return worker.status.state == WorkerStatus::State::kRunning;
  });
}

JobStatus::State JobBoard::state() const {
  const AgentView& view = rendezvous_.view();
  if (any_running()) {
    if (is_between_generations_ && !is_stopping_) return JobStatus::State::kGathering;
    const bool may_run = next_action(view, generation_, 0) == AgentAction::kWait && !is_stopping_;
    return may_run ? JobStatus::State::kRunning : JobStatus::State::kStopping;
  }
  if (view.phase == Phase::kSucceeded) return JobStatus::State::kSucceeded;
  if (view.phase == Phase::kFailed) return JobStatus::State::kFailed;
  return view.placement ? JobStatus::State::kRunning : JobStatus::State::kGathering;
}

JobStatus JobBoard::status() const {
  const AgentView& view = rendezvous_.view();
  JobStatus status{.job = options_.run_id,
                   .is_named = options_.is_named,
                   .pid = ::getpid(),
                   .host = host_name(),
                   .program = options_.program.name,
                   .role = options_.role,
                   .state = state(),
                   .generation = view.generation,
                   .restarts = view.restarts,
                   .max_restarts = options_.max_restarts,
                   .cause = view.cause,
                   .worker_count = options_.worker_count,
                   .seconds = seconds_since(start_),
                   .log_directory = log_directory_.string(),
                   .missing = rendezvous_.missing()};
  if (view.placement) {
    status.node_rank = view.placement->node_rank;
    status.node_count = view.placement->node_count;
    status.world_size = view.placement->world_size;
  }
  if (any_running()) status.workers_seconds = seconds_since(workers_.front().start);
  for (const Worker& worker : workers_) {
    WorkerStatus shown = worker.status;
    if (shown.state == WorkerStatus::State::kRunning) {
      const ProcessUsage usage = process_usage(shown.pid).value_or(ProcessUsage{});
      shown.seconds = seconds_since(worker.start);
      shown.cpu_seconds = usage.cpu_seconds;
      shown.resident_bytes = usage.resident_bytes;
    }
    status.workers.push_back(shown);
  }
  const bool has_failed = view.phase == Phase::kFailed;
  judge_health(status, rendezvous_.trouble(), has_failed ? std::optional(view.end) : std::nullopt);
  return status;
}

}  // namespace lockstep::inline internal
