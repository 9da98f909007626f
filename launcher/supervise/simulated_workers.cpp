// The workers of a simulated job: how they train together, notice each other's faults, and end.
#include <algorithm>
#include <csignal>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using std::chrono::milliseconds;

constexpr milliseconds kReadsWithin{2'000};

// `generation`: 0 for a standby worker.
void SimulatedJob::begin_process(Process& process, std::uint64_t generation) {
  const bool is_standby = generation == 0;
  process.doing = is_standby ? Process::Doing::kWarmsUp : Process::Doing::kBegins;
  process.generation = generation;
  if (is_standby && options_.is_random && happens_once_in(4)) {
    clock_.after(delay(1, 1'000), [this, &process] {
      if (process.is_active()) end_process(process, {.exit_code = 1}, true);
    });
  }
  // Python loads LibTorch.
  clock_.after(delay(500, 3'000), [this, &process, is_standby] {
    if (!process.is_active()) return;
    process.has_handler = true;
    if (options_.is_random) {
      say(process, CallsFile{});
      if (happens_once_in(8)) say(process, StateFile{});
    }
    if (process.is_resilient) say(process, KeepsState{.reads_within = kReadsWithin});
    if (is_standby) {
      process.doing = Process::Doing::kWaits;
    } else {
      enter(process, process.generation, process.rank);
    }
  });
}

void SimulatedJob::say(Process& process, WorkerMessage message) {
  if (!process.link_is_open || !process.is_active()) return;
  process.said.push_back(message);
  const WorkerId worker = process.worker;
  post(*process.machine, happened::MessageReceived{worker, std::move(message)});
  if (options_.is_random && happens_once_in(10)) {
    const auto which = static_cast<std::size_t>(draw(0, static_cast<int>(process.said.size()) - 1));
    if (!std::holds_alternative<LeftGroup>(process.said[which])) {
      post(*process.machine, happened::MessageReceived{worker, process.said[which]});
    }
  }
}

void SimulatedJob::enter(Process& process, std::uint64_t generation, int rank) {
  process.generation = generation;
  process.rank = rank;
  process.doing = Process::Doing::kTrains;
  process.is_in_collective = false;
  Group& group = groups_[generation];
  const auto [member, is_new] = group.members.emplace(rank, &process);
  if (!is_new && member->second->is_active() && member->second->generation == generation &&
      member->second != &process) {
    violate(concat("two workers are rank ", rank, " of generation ", generation));
  }
  if (process.asked_to_leave >= generation) {
    clock_.after(delay(1, 50), [this, &process, generation] {
      if (process.generation == generation) leave_group(process, LeftGroup::Cause::kOtherWorker);
    });
    return;
  }
  if (group.is_broken) {
    clock_.after(delay(1, 50),
                 [this, &process, generation] { notice_lost_peer(process, generation); });
    return;
  }
  if (static_cast<int>(group.members.size()) < group.world_size) {
    clock_.after(kSimulatedCollectiveTimeout + delay(0, 500), [this, &process, generation] {
      if (!groups_[generation].is_complete) notice_late_peer(process, generation);
    });
    return;
  }
  group.is_complete = true;
  for (const auto& [number, peer] : group.members) {
    if (options_.is_random) peer->is_in_collective = happens_once_in(2);
    // That hangs since before it met.
    if (peer->hangs) hang(*peer);
  }
  clock_.after(options_.training, [this, generation] { complete_training(generation); });
}

void SimulatedJob::complete_training(std::uint64_t generation) {
  const Group& group = groups_[generation];
  if (group.is_broken) return;
  for (const auto& [rank, process] : group.members) {
    if (process->hangs) return;
  }
  for (const auto& [rank, process] : group.members) {
    clock_.after(delay(0, 500), [this, worker = process, generation] {
      if (!worker->is_active() || worker->generation != generation ||
          worker->doing != Process::Doing::kTrains) {
        return;
      }
      worker->doing = Process::Doing::kIsDone;
      if (worker->is_resilient) say(*worker, TrainingDone{});
      // It writes its results.
      const bool takes_long = options_.is_random && happens_once_in(4);
      clock_.after(delay(1, takes_long ? 20'000 : 500), [this, worker] {
        if (worker->is_active()) end_process(*worker, {.exit_code = 0}, false);
      });
    });
  }
}

// Its peers see that a member is gone.
void SimulatedJob::break_group(std::uint64_t generation) {
  Group& group = groups_[generation];
  if (std::exchange(group.is_broken, true)) return;
  for (const auto& [rank, process] : group.members) {
    clock_.after(delay(1, 50),
                 [this, worker = process, generation] { notice_lost_peer(*worker, generation); });
  }
}

void SimulatedJob::notice_lost_peer(Process& process, std::uint64_t generation) {
  if (process.generation != generation || process.doing != Process::Doing::kTrains) return;
  if (!process.is_active()) return;
  // It computes, and does not look at the others before it is asked to.
  if (process.is_resilient && options_.is_random && happens_once_in(6)) return;
  if (process.is_resilient) return leave_group(process, LeftGroup::Cause::kOtherWorker);
  if (options_.is_random && happens_once_in(3)) {  // It computes, and asks no other for long.
    clock_.after(delay(2'000, 20'000),
                 [this, &process, generation] { notice_lost_peer(process, generation); });
    return;
  }
  WorkerExit exit{.exit_code = 1, .error_message = "PeerLost: a rank is gone"};
  exit.error_kind = ErrorKind::kOtherWorker;
  end_process(process, exit, false);
}

void SimulatedJob::notice_late_peer(Process& process, std::uint64_t generation) {
  if (process.generation != generation || process.doing != Process::Doing::kTrains) return;
  if (!process.is_active() || groups_[generation].is_broken) return;
  faulty_.insert(generation);
  say(process, DeadlineExpired{.operation = "all_reduce", .waited = kSimulatedCollectiveTimeout});
  clock_.after(delay(100, 500), [this, &process, generation] {
    if (process.generation != generation || !process.is_active()) return;
    if (process.is_resilient) return leave_group(process, LeftGroup::Cause::kLateRank);
    end_process(process, {.exit_code = 1, .error_message = "TimeoutError: a rank is late"}, true);
  });
}

void SimulatedJob::leave_group(Process& process, LeftGroup::Cause cause) {
  if (!process.is_active() || process.doing != Process::Doing::kTrains) return;
  if (!process.link_is_open) {
    WorkerExit exit{.exit_code = 1, .error_message = "PeerLost: a rank is gone"};
    exit.error_kind = ErrorKind::kOtherWorker;
    return end_process(process, exit, false);
  }
  process.doing = Process::Doing::kWaits;
  process.is_in_collective = false;
  say(process,
      LeftGroup{
          .generation = process.generation, .text = "why", .cause = cause, .step = process.step()});
  break_group(process.generation);
  clock_.after(delay(1, 100), [this, &process, left = process.generation] {
    take_place_after_leaving(process, left);
  });
}

// It may have been sent its place before it had left.
void SimulatedJob::take_place_after_leaving(Process& process, std::uint64_t left) {
  const auto& supervision = process.machine->supervision;
  if (!supervision || supervision->generation <= left) return;
  if (!process.is_active() || process.doing != Process::Doing::kWaits) return;
  const auto worker = supervision->workers.find(process.worker);
  if (worker == supervision->workers.end()) return;
  if (worker->second.state != WorkerState::kRecovering) return;
  const std::uint64_t generation = supervision->generation;
  const int rank = worker->second.exit.rank;
  say(process, TookRank{.generation = generation});
  enter(process, generation, rank);
}

void SimulatedJob::note_fault(const Process& process) {
  if (process.generation > 0) faulty_.insert(process.generation);
  // It may have yet to read its place.
  const auto& supervision = process.machine->supervision;
  if (!supervision) return;
  const auto worker = supervision->workers.find(process.worker);
  if (worker == supervision->workers.end()) return;
  if (worker->second.state != WorkerState::kDismissed) faulty_.insert(supervision->generation);
}

void SimulatedJob::end_process(Process& process, WorkerExit how, bool is_own_fault) {
  if (!process.is_alive() || process.doing == Process::Doing::kEnds) return;
  Machine& machine = *process.machine;
  if (is_own_fault || process.doing == Process::Doing::kTrains) note_fault(process);
  process.failed_by_itself =
      (is_own_fault || process.hangs) && (how.exit_code != 0 || how.signal != 0);
  const bool is_late = options_.is_random && happens_once_in(3);
  const bool was_in_group =
      process.doing == Process::Doing::kTrains || process.doing == Process::Doing::kBegins;
  process.doing = Process::Doing::kEnds;
  // Its connection closes before its memory is taken apart, or after.
  if (process.link_is_open && !is_late) {
    process.link_is_open = false;
    clock_.after(delay(0, 1), [this, &process, &machine] {
      post(machine, happened::LinkClosed{process.worker});
    });
  }
  if (was_in_group) break_group(process.generation);
  const bool is_slow = options_.is_random && happens_once_in(10);
  clock_.after(is_slow ? delay(100, 3'000) : delay(1, 30), [this, &process, &machine, how] {
    process.doing = Process::Doing::kGone;
    process.ended_at = clock_.now();
    process.link_is_open = false;
    post(machine, happened::WorkerEnded{process.worker, how});
    if (!process.has_children) post(machine, happened::GroupEmptied{process.worker});
  });
}

void SimulatedJob::hang(Process& process) {
  process.hangs = true;
  process.hung_in_group = process.doing == Process::Doing::kTrains;
  note_fault(process);
  const std::uint64_t generation = process.generation;
  if (generation == 0) return;
  Group& group = groups_[generation];
  for (const auto& [rank, peer] : group.members) {
    clock_.after(kSimulatedCollectiveTimeout + delay(0, 500),
                 [this, worker = peer, generation] { notice_late_peer(*worker, generation); });
  }
}

void SimulatedJob::receive_signal(Process& process, int signal) {
  if (!process.is_alive() || process.doing == Process::Doing::kEnds || process.is_stuck) return;
  if (signal == SIGKILL) {
    clock_.after(delay(0, 20),
                 [this, &process] { end_process(process, {.signal = SIGKILL}, false); });
    return;
  }
  if (process.hangs || process.ignores_sigterm) return;
  if (signal == SIGUSR1) return save_and_end(process.generation);
  clock_.after(delay(1, 200),
               [this, &process, signal] { end_process(process, {.signal = signal}, false); });
}

// A notice of a preemption: all ranks save, and end.
void SimulatedJob::save_and_end(std::uint64_t generation) {
  faulty_.insert(generation);
  if (!groups_.contains(generation)) return;
  for (const auto& [rank, peer] : groups_[generation].members) {
    clock_.after(delay(100, 500), [this, worker = peer] {
      if (worker->is_active() && worker->doing != Process::Doing::kIsDone) {
        end_process(*worker, {.exit_code = kExitPreempted}, true);
      }
    });
  }
}

}  // namespace lockstep::inline internal
