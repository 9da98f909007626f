// What becomes of workers that outlive their generation.
#include <algorithm>
#include <csignal>
#include <string>

#include "diagnose/verdict/worker_text.h"
#include "launcher/job/console.h"
#include "launcher/supervise/supervisor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// A worker that sees another's end is faster than the system, which takes that one's memory apart
// before it says so.
constexpr milliseconds kCauseComes{1'000};
// Delay of a standby worker: the workers that train need the processors first.
constexpr milliseconds kOthersFirst{500};
constexpr int kMostFailedStandbys = 3;

}  // namespace

void Supervisor::hear(Group& group, const LeftGroup& message) {
  if (message.generation != generation_ || keeps_workers_) return;
  group.has_left_group = true;
  if (!cause_by_) cause_by_ = Deadline::after(kCauseComes);
  if (outcome_.step.empty() && message.step) outcome_.step = std::to_string(*message.step);
  const bool follows = message.cause == LeftGroup::Cause::kOtherWorker;
  if (outcome_.lost.empty() || (lost_follows_ && !follows)) {
    lost_follows_ = follows;
    outcome_.lost = concat(describe_worker(group.worker), " left its group: ", message.text);
  }
  if (message.cause != LeftGroup::Cause::kLateRank) return;
  outcome_.is_hang = true;
  look_for_those_that_hang();
}

// Those that are only starting have nothing to keep, and would wait for ranks that do not come.
bool Supervisor::keep_workers() {
  if (keeps_workers_) return false;
  const auto is_done = [](const auto& entry) { return entry.second.is_done; };
  const auto ended_well = [](const WorkerExit& exit) { return !exit.failed(); };
  if (!any_kept() || std::ranges::any_of(groups_, is_done) ||
      std::ranges::any_of(outcome_.exits, ended_well)) {
    return false;
  }
  for (auto& [id, group] : groups_) {
    if (!group.running) {
      signal_group(id, SIGKILL);
    } else if (!group.is_kept() && !group.is_standby) {
      dismiss(id, group, milliseconds(0));
    }
  }
  tell_to_leave();
  keeps_workers_ = true;
  is_over_ = false;
  cause_by_.reset();
  awaits_leaving_ = false;
  looks_until_.reset();
  told_exits_ = std::ssize(outcome_.exits);
  board_.round_is_over();
  rounds_.over(outcome_);
  return true;
}

void Supervisor::dismiss(pid_t id, Group& group, milliseconds patience) {
  group.told_to_stop = true;
  group.is_dismissed = true;
  group.kill_at = Deadline::after(patience);
  signal_group(id, patience.count() == 0 ? SIGKILL : SIGTERM);
}

void Supervisor::go_on() {
  if (!keeps_workers_ || stop_.started() || !any_kept()) return;
  std::set<int> kept;
  for (const auto& [id, group] : groups_) {
    if (group.is_kept()) kept.insert(group.worker.local_rank);
  }
  const auto standbys = std::ranges::count_if(
      groups_, [](const auto& entry) { return entry.second.waits_for_a_place(); });
  const std::optional<Round> round = rounds_.next(kept, static_cast<int>(standbys));
  if (!round) return;
  keeps_workers_ = false;
  is_over_ = false;  // Those that have ended meanwhile are replaced in this one.
  has_looked_ = false;
  hang_explained_.reset();
  generation_ = round->generation;
  outcome_ = {};
  board_.round_goes_on(generation_);
  give_places(*round, kept);
}

void Supervisor::give_places(const Round& round, const std::set<int>& kept) {
  for (auto& [id, group] : groups_) {
    if (!group.is_kept()) continue;
    const auto worker =
        std::ranges::find(round.workers, group.worker.local_rank, &Worker::local_rank);
    if (worker != round.workers.end()) {
      place(id, group, *worker);
    } else {
      dismiss(id, group, options_.shutdown_timeout);
    }
  }
  for (const Worker& worker : round.workers) {
    if (kept.contains(worker.local_rank)) continue;
    const auto standby = std::ranges::find_if(
        groups_, [](const auto& entry) { return entry.second.waits_for_a_place(); });
    if (standby == groups_.end()) {
      start(worker);
      continue;
    }
    auto& [id, group] = *standby;
    group.is_standby = group.is_ready = false;
    group.keeps_state = true;
    place(id, group, worker);
  }
}

void Supervisor::place(pid_t id, Group& group, const Worker& worker) {
  group.worker.rank = worker.rank;
  group.worker.local_rank = worker.local_rank;
  group.has_left_group = group.waits = false;
  group.leaves_by.reset();
  group.worker.waited_in_vain = false;
  group.worker.hangs_in.clear();
  if (!group.answers_by) group.answers_by = Deadline::after(group.reads_within + kTimeToLeave);
  board_.placed(group.worker);
  failpoint("launch.place");
  // One that does not read is as good as one that ends.
  if (!send_message(group.link.get(), worker.place, worker.place_fd)) ::kill(id, SIGKILL);
  failpoint("launch.placed");
}

// A failure here is not reported as a fault: the next generation replaces the worker anyway.
void Supervisor::note_end_between_rounds(const WorkerExit& exit) {
  if (!exit.failed() || exit.told_to_stop) return;
  if (exit.exit_code == kExitPreempted) {
    is_preempted_ = true;
    forget_round_before();
    return;
  }
  say(concat(describe_worker(exit), " ", describe_failure(exit),
             " while it waited for the next generation; a replacement takes its rank"));
}

void Supervisor::forget_round_before() {
  outcome_.exits.erase(outcome_.exits.begin(), outcome_.exits.begin() + told_exits_);
  outcome_.lost.clear();
  told_exits_ = 0;
}

void Supervisor::kill_dismissed() {
  for (auto& [id, group] : groups_) {
    if (!group.kill_at || group.killed || !group.kill_at->passed()) continue;
    group.killed = true;
    signal_group(id, SIGKILL);
  }
}

// Once it is known that the program waits for a place: another would train on its own.
void Supervisor::start_standbys() {
  if (options_.standby_workers == 0 || stop_.started() || keeps_workers_ || !any_kept()) return;
  if (failed_standbys_ >= kMostFailedStandbys) return;
  const auto is_standby = [](const auto& entry) {
    return entry.second.is_standby && entry.second.running;
  };
  if (std::ranges::count_if(groups_, is_standby) >= options_.standby_workers) {
    standby_at_.reset();
  } else if (!standby_at_) {
    standby_at_ = Deadline::after(kOthersFirst);
  } else if (standby_at_->passed()) {
    start(rounds_.standby()).is_standby = true;
    standby_at_.reset();
  }
}

void Supervisor::note_failed_standby(const WorkerExit& exit) {
  if (++failed_standbys_ < kMostFailedStandbys) return;
  say(concat("no more standby workers: the last ", kMostFailedStandbys,
             " ended before they were ready (", describe_end(exit), ")"));
}

void Supervisor::dismiss_standbys() {
  for (auto& [id, group] : groups_) {
    if (group.is_standby && !group.is_dismissed) dismiss(id, group, milliseconds(0));
  }
}

}  // namespace lockstep::inline internal
